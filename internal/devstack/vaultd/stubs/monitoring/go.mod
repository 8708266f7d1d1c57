module cloud.google.com/go/monitoring

go 1.26.0

require google.golang.org/api v0.251.0
