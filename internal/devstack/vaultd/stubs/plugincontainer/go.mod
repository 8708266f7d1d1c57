module github.com/hashicorp/go-secure-stdlib/plugincontainer

go 1.26.0

require (
	github.com/hashicorp/go-hclog v1.6.3
	github.com/hashicorp/go-plugin v1.6.1
)
