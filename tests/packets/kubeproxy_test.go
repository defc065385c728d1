package packets_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/lab"
)

// proxyMode is a mode of kube-proxy, and the iptables backend that it finds.
type proxyMode struct {
	name     string
	proxy    string // --proxy-mode
	iptables string // the suffix of the programs
}

var proxyModes = []proxyMode{
	{"nftables", "nftables", "nft"},
	{"iptables-nft", "iptables", "nft"},
	{"iptables-legacy", "iptables", "legacy"},
}

// lastService is made after all others.
const lastService = "last"

// publish makes the objects of manifests in the API server, then lastService, and
// the nodes.
func publish(t *testing.T, server *apiserver.Server, manifests []string) {
	t.Helper()
	client := server.Client(t)
	for i := range 2 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i+1)}}
		for _, addr := range nodeAddrs(i + 1) {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
		}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	last := clusterIP(200)
	manifests = append(manifests,
		lab.Service(lastService, fmt.Sprintf("{clusterIPs: [%q, %q], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}", last[0], last[1])),
		lab.Slice(lastService, "80/TCP", nodeAddrs(1)[0]), lab.Slice(lastService, "80/TCP", nodeAddrs(1)[1]))
	for _, text := range manifests {
		if err := create(t.Context(), client, []byte(text)); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
}

// create makes a Service or an EndpointSlice.
func create(ctx context.Context, client *kubeclient.Client, text []byte) error {
	var service corev1.Service
	if err := yaml.UnmarshalStrict(text, &service); err == nil && service.Kind == "Service" {
		service.Spec.ClusterIP = service.Spec.ClusterIPs[0]
		_, err := client.CoreV1().Services(service.Namespace).Create(ctx, &service, metav1.CreateOptions{})
		return err
	}
	var slice discoveryv1.EndpointSlice
	if err := yaml.UnmarshalStrict(text, &slice); err != nil {
		return err
	}
	_, err := client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, &slice, metav1.CreateOptions{})
	return err
}

// kubeProxy is a real kube-proxy in the namespace of a node.
type kubeProxy struct {
	t      *testing.T
	node   *lab.Namespace
	mode   proxyMode
	path   string // of the programs
	config string
	*lab.Process
}

// newKubeProxy makes a kube-proxy that does not run yet.
func newKubeProxy(t *testing.T, server *apiserver.Server, node *lab.Namespace, m proxyMode) *kubeProxy {
	t.Helper()
	bin, err := apiserver.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node.Relay(strings.TrimPrefix(server.Config.Host, "https://"))
	k := &kubeProxy{t: t, node: node, mode: m, config: server.Kubeconfig}
	k.path = strings.Join([]string{lab.IPTables(t, m.iptables), bin, os.Getenv("PATH")}, ":")
	return k
}

// start runs kube-proxy and returns when its rules lead to all Services.
func (k *kubeProxy) start() {
	k.t.Helper()
	k.Process = k.node.Start("env", "PATH="+k.path, "kube-proxy",
		"--proxy-mode="+k.mode.proxy, "--hostname-override=node1", "--kubeconfig="+k.config,
		"--cluster-cidr="+strings.Join(podRanges, ","), "--nodeport-addresses=0.0.0.0/0,::/0",
		// What concerns the whole machine is left as it is.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0")
	lab.Eventually(k.t, "kube-proxy has made its rules", func() bool {
		return k.Ended() || k.synced()
	})
	if k.Ended() {
		k.t.Fatalf("kube-proxy ended: %v", k.Wait())
	}
}

// synced reports whether rules of both families lead to the last Service's
// endpoint.
func (k *kubeProxy) synced() bool {
	for _, family := range []string{"", "6"} {
		var rules string
		if k.mode.proxy == "nftables" {
			rules, _ = k.node.Output("nft", "list", "table", "ip"+family, "kube-proxy")
		} else {
			rules, _ = k.node.Output("ip" + family + "tables-" + k.mode.iptables + "-save")
		}
		if !strings.Contains(rules, "default/"+lastService) {
			return false
		}
	}
	return true
}

// stop ends kube-proxy; its rules stay.
func (k *kubeProxy) stop() {
	k.t.Helper()
	k.Signal(unix.SIGTERM)
	_ = k.Wait() // it ends by the signal
}

// cleanup has kube-proxy remove its own rules.
func (k *kubeProxy) cleanup() {
	k.t.Helper()
	if _, err := k.node.Output("env", "PATH="+k.path, "kube-proxy", "--cleanup"); err != nil {
		k.t.Fatalf("kube-proxy --cleanup: %v", failure(err))
	}
}

// cleanupByAgent has the agent remove kube-proxy's rules, without any program of
// iptables or nftables in reach, and returns what it says.
func cleanupByAgent(t *testing.T, n *lab.Namespace) string {
	t.Helper()
	out, err := n.Output("env", "PATH=/nonexistent", lab.AgentBinary(t), "--cleanup-kube-proxy")
	if err != nil {
		t.Fatalf("--cleanup-kube-proxy: %v", failure(err))
	}
	return out
}

// failure adds to an error what the program wrote.
func failure(err error) error {
	if exit, ok := err.(*exec.ExitError); ok {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
