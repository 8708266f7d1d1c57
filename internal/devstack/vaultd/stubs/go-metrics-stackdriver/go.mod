module github.com/google/go-metrics-stackdriver

go 1.26.0

require (
	cloud.google.com/go/monitoring v1.24.2
	github.com/armon/go-metrics v0.4.1
)
