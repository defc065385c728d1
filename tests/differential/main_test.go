// Package differential_test runs the real beeline-agent and the real kube-proxy for
// the same cluster and compares what they answer. It needs root.
package differential_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// rig is a cluster of one node, which may be there twice: a host that Beeline serves
// and one that kube-proxy does.
type rig struct {
	t         *testing.T
	began     time.Time // before anything of it ran
	server    *apiserver.Server
	client    *kubeclient.Client
	beeline   *lab.Host
	kubeProxy *lab.Host
	agent     *lab.Process
	// broken is the path of a file that makes kube-proxy's changes fail.
	broken string
}

// newRig starts a cluster of a node that Beeline serves.
func newRig(t *testing.T, agentFlags ...string) *rig {
	t.Helper()
	r := &rig{t: t, began: time.Now(), server: apiserver.Start(t)}
	r.client = r.server.Client(t)
	r.createNode()
	r.beeline = r.newHost()
	r.startAgent(agentFlags...)
	return r
}

// newHost makes a host from which the API server can be reached.
func (r *rig) newHost() *lab.Host {
	r.t.Helper()
	h := lab.NewHost(r.t)
	h.Relay(strings.TrimPrefix(r.server.Config.Host, "https://"))
	return h
}

func (r *rig) hosts() []*lab.Host { return []*lab.Host{r.beeline, r.kubeProxy} }

func (r *rig) createNode() *corev1.Node {
	r.t.Helper()
	node, err := r.client.CoreV1().Nodes().Create(r.t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}}, metav1.CreateOptions{})
	r.must(err)
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: lab.Node4.String()},
		{Type: corev1.NodeInternalIP, Address: lab.Node6.String()},
	}
	node, err = r.client.CoreV1().Nodes().UpdateStatus(r.t.Context(), node, metav1.UpdateOptions{})
	r.must(err)
	return node
}

// changeNode changes the Node object, its status too.
func (r *rig) changeNode(change func(*corev1.Node)) {
	r.t.Helper()
	nodes := r.client.CoreV1().Nodes()
	node, err := nodes.Get(r.t.Context(), lab.NodeName, metav1.GetOptions{})
	r.must(err)
	change(node)
	status := node.Status
	node, err = nodes.Update(r.t.Context(), node, metav1.UpdateOptions{})
	r.must(err)
	node.Status = status
	_, err = nodes.UpdateStatus(r.t.Context(), node, metav1.UpdateOptions{})
	r.must(err)
}

func (r *rig) startAgent(flags ...string) {
	r.t.Helper()
	r.agent = r.beeline.Start(lab.AgentBinary(r.t), append([]string{
		"--kubeconfig", r.server.Kubeconfig, "--hostname-override", lab.NodeName,
		"--cgroup-root", r.beeline.Cgroup, "--bpffs", r.beeline.BPFFS,
	}, flags...)...)
}

// startKubeProxy runs it on a host of its own, with an nft that fails while the file
// broken is there.
func (r *rig) startKubeProxy() {
	r.t.Helper()
	r.kubeProxy = r.newHost()
	bin, err := apiserver.Build(r.t.Context())
	r.must(err)
	dir := r.t.TempDir()
	r.broken = filepath.Join(dir, "broken")
	script := "#!/bin/sh\n[ -e " + r.broken + " ] && exit 1\nPATH=" + os.Getenv("PATH") + " exec nft \"$@\"\n"
	r.must(os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o700))
	config := filepath.Join(dir, "config.yaml")
	r.must(os.WriteFile(config, []byte(kubeProxyConfig+"hostnameOverride: "+lab.NodeName+
		"\nclientConnection: {kubeconfig: "+r.server.Kubeconfig+"}\n"), 0o600))
	r.kubeProxy.Start("/usr/bin/env", "PATH="+dir+":"+os.Getenv("PATH"), filepath.Join(bin, "kube-proxy"), "--config="+config)
}

// kubeProxyConfig leaves what concerns the whole machine as it is. NodePorts answer
// everywhere, as in the other modes.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
nftables: {syncPeriod: 2s, minSyncPeriod: 10ms}
conntrack: {maxPerCore: 0, min: 0}
oomScoreAdj: 0
nodePortAddresses: [0.0.0.0/0, "::/0"]
`

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
