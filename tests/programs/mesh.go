package programs

// Istio writes the rules by which a sidecar of Istio catches its pod's connections.
var Istio = Set{
	Name:        "istio",
	Module:      "tests/packets/modules/istio",
	Packages:    map[string]string{"istio-iptables": "."},
	LinkerFlags: "-s -w",
}

// Linkerd does so for one of Linkerd.
var Linkerd = Set{
	Name:        "linkerd",
	Module:      "tests/packets/modules/linkerd",
	Packages:    map[string]string{"proxy-init": "github.com/linkerd/linkerd2-proxy-init"},
	LinkerFlags: "-s -w",
}
