module github.com/beeline-lb/beeline/tests/packets/modules/linkerd

go 1.26.8

tool github.com/linkerd/linkerd2-proxy-init

require (
	github.com/inconshreveable/mousetrap v1.0.0 // indirect
	github.com/linkerd/linkerd2-proxy-init v1.4.0 // indirect
	github.com/spf13/cobra v0.0.7 // indirect
	github.com/spf13/pflag v1.0.3 // indirect
)
