package programs

// kubernetesModule requires k8s.io/kubernetes.
const kubernetesModule = "tests/apiserver/kubernetes"

// kubernetesLinkerFlags strip the symbols and give the programs the version that
// their release has. It must be that of the module.
const kubernetesLinkerFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v1.36.3" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36"

// Kubernetes is what an API server needs, and kube-proxy.
var Kubernetes = Set{
	Name:   "kubernetes",
	Module: kubernetesModule,
	Packages: map[string]string{
		"etcd":           "go.etcd.io/etcd/server/v3",
		"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
		"kube-proxy":     "k8s.io/kubernetes/cmd/kube-proxy",
	},
	LinkerFlags: kubernetesLinkerFlags,
}

// KubernetesNode is what else a cluster needs.
var KubernetesNode = Set{
	Name:   "kubernetes-node",
	Module: kubernetesModule,
	Packages: map[string]string{
		"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
		"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
		"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
		"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	},
	LinkerFlags: kubernetesLinkerFlags,
}

// Kubectl is kubectl alone, for tests without a cluster.
var Kubectl = Set{
	Name:        "kubectl",
	Module:      kubernetesModule,
	Packages:    map[string]string{"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
	LinkerFlags: kubernetesLinkerFlags,
}

// KubernetesTests is upstream's end-to-end suite, what runs it, and the program in
// the images of its pods.
var KubernetesTests = Set{
	Name:   "kubernetes-tests",
	Module: kubernetesModule,
	Packages: map[string]string{
		"agnhost": "k8s.io/kubernetes/test/images/agnhost",
		"ginkgo":  "github.com/onsi/ginkgo/v2/ginkgo",
	},
	Tests:       map[string]string{"e2e.test": "k8s.io/kubernetes/test/e2e"},
	LinkerFlags: kubernetesLinkerFlags,
}

// KubernetesImages is what else is in the images of that suite.
var KubernetesImages = Set{
	Name:        "kubernetes-images",
	Module:      kubernetesModule,
	Packages:    map[string]string{"regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839"},
	LinkerFlags: kubernetesLinkerFlags,
}
