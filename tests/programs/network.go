package programs

// Flannel connects pods of different nodes. Its CNI plugin is a module of its own,
// which the proxy does not have: see tests/cluster/flannel. The version must be that
// of the module. One of its backends has C code.
var Flannel = Set{
	Name:   "flannel",
	Module: "tests/cluster/modules/flannel",
	Packages: map[string]string{
		"flanneld":     "github.com/flannel-io/flannel",
		"install-conf": "github.com/flannel-io/flannel/cmd/install_conf",
	},
	LinkerFlags: "-s -w -extldflags=-static -X github.com/flannel-io/flannel/pkg/version.Version=v0.28.10",
	Tags:        "netgo,osusergo",
	CGO:         true,
}

// KubeRouter does so by BGP between the nodes. It is the fork that k3s has, see the module.
var KubeRouter = Set{
	Name:        "kube-router",
	Module:      "tests/cluster/modules/kube-router",
	Packages:    map[string]string{"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
	LinkerFlags: "-s -w -X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.6.3-k3s1",
}

// Kindnet is what connects the pods of a cluster that kind makes.
var Kindnet = Checkout{
	Set: Set{
		Name:        "kindnet",
		Module:      "images/kindnetd",
		Packages:    map[string]string{"kindnetd": "./cmd/kindnetd"},
		LinkerFlags: "-s -w",
	},
	Project:  "kubernetes-sigs/kind",
	Variable: "KINDNET_SRC",
}

// Calico is linked with the libbpf of its checkout. Of Debian's libpcap, which compiles
// filters for it, the static library refers to one of D-Bus that Debian does not have.
var Calico = Checkout{
	Set: Set{
		Name: "calico",
		Packages: map[string]string{
			"calico-node": "./node/cmd/calico-node",
			"mountns":     "./node/cmd/mountns",
			"calico":      "./cni-plugin/cmd/calico",
			"install":     "./cni-plugin/cmd/install",
		},
		LinkerFlags: "-s -w -extldflags '-static -Wl,--unresolved-symbols=ignore-all'",
		Tags:        "netgo,osusergo",
		CGO:         true,
	},
	Project:  "projectcalico/calico",
	Variable: "CALICO_SRC",
	Prepare:  buildLibbpf,
}

// Cilium connects pods, and compiles its BPF programs at a node with clang.
var Cilium = Set{
	Name:   "cilium",
	Module: "tests/cluster/modules/cilium",
	Packages: map[string]string{
		"cilium-agent":            "github.com/cilium/cilium/daemon",
		"cilium-cni":              "github.com/cilium/cilium/plugins/cilium-cni",
		"cilium-health-responder": "github.com/cilium/cilium/cilium-health/responder",
		"cilium-operator":         "github.com/cilium/cilium/operator",
	},
	LinkerFlags: "-s -w -X github.com/cilium/cilium/pkg/version.ciliumVersion=1.20.2",
	Tags:        "ipam_provider_operator",
}

// MetalLB assigns the addresses of load balancers and announces them, by ARP and NDP in L2
// mode. Its manifest is that of the module, see [Set.Sources].
var MetalLB = Set{
	Name:   "metallb",
	Module: "tests/cluster/modules/metallb",
	Packages: map[string]string{
		"controller": "go.universe.tf/metallb/controller",
		"speaker":    "go.universe.tf/metallb/speaker",
	},
	LinkerFlags: "-s -w",
}

// KubeNetworkPolicies enforces NetworkPolicy.
var KubeNetworkPolicies = Set{
	Name:        "kube-network-policies",
	Module:      "tests/cluster/modules/kube-network-policies",
	Packages:    map[string]string{"netpol": "sigs.k8s.io/kube-network-policies/cmd/kube-network-policies/standard"},
	LinkerFlags: "-s -w",
}
