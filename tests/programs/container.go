package programs

// Containerd is the container runtime of a node.
var Containerd = Set{
	Name:   "containerd",
	Module: "tests/cluster/modules/containerd",
	Packages: map[string]string{
		"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
		"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"ctr":                     "github.com/containerd/containerd/v2/cmd/ctr",
	},
	LinkerFlags: "-s -w",
}

// Runc starts containers. It is built with C code, and with libseccomp.
var Runc = Set{
	Name:        "runc",
	Module:      "tests/cluster/modules/runc",
	Packages:    map[string]string{"runc": "github.com/opencontainers/runc"},
	LinkerFlags: "-s -w",
	Tags:        "seccomp",
	CGO:         true,
}

// CNI are the plugins that connect pods.
var CNI = Set{
	Name:   "cni",
	Module: "tests/cluster/modules/cni",
	Packages: map[string]string{
		"ptp":        "github.com/containernetworking/plugins/plugins/main/ptp",
		"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
		"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
		"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
		"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
	},
	LinkerFlags: "-s -w",
}

// CoreDNS is the cluster's name server.
var CoreDNS = Set{
	Name:        "coredns",
	Module:      "tests/cluster/modules/coredns",
	Packages:    map[string]string{"coredns": "github.com/coredns/coredns"},
	LinkerFlags: "-s -w",
}
