package chart_test

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// token returns one of a service account.
func (c *cluster) token(account string) string {
	c.t.Helper()
	request, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(c.t.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return request.Status.Token
}

// serve makes two Nodes, and a Service at an address with one endpoint, whose packets are
// to be tunneled.
func (c *cluster) serve(address string) netip.AddrPort {
	c.t.Helper()
	ctx, create := c.t.Context(), metav1.CreateOptions{}
	for name, address := range map[string]string{lab.NodeName: lab.Node4.String(), otherNode: "192.0.2.77"} {
		_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
		}, create)
		if err != nil {
			c.t.Fatal(err)
		}
	}
	_, err := c.client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"service.beeline.io/forwarding-mode": "dsr"}},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}},
	}, create)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("web"), Port: new(int32(8080))},
			{Name: new("dns"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolUDP)},
		},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{lab.Backend4(1).String()}}},
	}, create)
	if err != nil {
		c.t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(address), 80)
}

// servesAsInstalled installs the chart and runs the agent as its pod says. What it asks
// of the API server must be what the role allows, no less and no more.
func servesAsInstalled(c *cluster) {
	host, port, _ := strings.Cut(strings.TrimPrefix(c.server.Config.Host, "https://"), ":")
	c.helm.must("install", release, chartDir(c.t), "--set=apiServer.host="+host, "--set=apiServer.port="+port,
		"--set=config.allowedAnnotations={service.beeline.io/forwarding-mode}")
	pod := &c.daemonSet().Spec.Template.Spec
	agent := pod.Containers[0]
	to := c.serve("10.96.0.77")

	n := newNode(c)
	p := n.startAgent(pod)
	lab.Eventually(c.t, "the Service is served", func() bool {
		got, err := n.Reach("tcp4", to)
		return err == nil && got.Addr() == lab.Backend4(1)
	})
	lab.Eventually(c.t, "all nodes are known", func() bool { return slices.Equal(n.known(), []string{lab.NodeName, otherNode}) })
	n.checkSockets(netip.AddrPortFrom(to.Addr(), 53))
	checkRole(c, pod.ServiceAccountName, p)
	checkForbidden(c, pod.ServiceAccountName)
	p.Signal(unix.SIGTERM)
	if err := p.Wait(); err != nil {
		c.t.Errorf("the agent ended with %v", err)
	}

	if lacksRight.MatchString(p.Output()) {
		c.t.Error("the agent lacks a right")
	}

	for _, capability := range agent.SecurityContext.Capabilities.Add {
		p := newNode(c).start(pod, agent, capability)
		lab.Eventually(c.t, "the agent misses "+string(capability), func() bool {
			return lacksRight.MatchString(p.Output())
		})
	}
}

// checkSockets takes the endpoint away from the Service: the sockets that are connected to
// it, of the node and of a pod, fail.
func (n *node) checkSockets(to netip.AddrPort) {
	n.t.Helper()
	var sockets []*lab.Socket
	for _, namespace := range []*lab.Namespace{n.Namespace, n.Pod} {
		s := namespace.Socket("udp4")
		if err := s.Connect(to); err != nil {
			n.t.Fatal(err)
		}
		if _, err := s.Ask("who"); err != nil {
			n.t.Fatal(err)
		}
		sockets = append(sockets, s)
	}
	slices := n.cluster.client.DiscoveryV1().EndpointSlices("default")
	if err := slices.Delete(n.t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	for _, s := range sockets {
		s.Ready(wait.Limit)
		if _, _, err := s.Receive(); !errors.Is(err, unix.ECONNABORTED) {
			n.t.Errorf("who waits for an answer gets %v, want %v", err, unix.ECONNABORTED)
		}
	}
}

// otherNode is the name of a Node without a machine.
const otherNode = "other-node"

// known returns the names of the nodes that the datapath knows, sorted.
func (n *node) known() []string {
	n.t.Helper()
	opened, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	if err != nil {
		n.t.Fatal(err)
	}
	defer opened.Close()
	list, err := nodemap.New(opened).List()
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for _, node := range list {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names
}

// lacksRight matches messages of what needs a capability that the agent lacks.
var lacksRight = regexp.MustCompile("operation not permitted|no right to")

// startAgent starts the agent and waits until its probes pass.
func (n *node) startAgent(pod *corev1.PodSpec) *lab.Process {
	n.t.Helper()
	agent := pod.Containers[0]
	p := n.start(pod, agent)
	lab.Eventually(n.t, "the probes pass", func() bool {
		return p.Ended() || n.passes(agent.StartupProbe) && n.passes(agent.LivenessProbe) && n.passes(agent.ReadinessProbe)
	})
	if p.Ended() {
		n.t.Fatalf("the agent ended: %v", p.Wait())
	}
	return p
}

// initContainer returns the one of a name.
func initContainer(t *testing.T, pod *corev1.PodSpec, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no init container %s", name)
	}
	return pod.InitContainers[i]
}

// takesDown changes the release to one that removes everything from the nodes. The
// rights of its container must do for that.
func takesDown(c *cluster) {
	n := newNode(c)
	for _, value := range []string{"cleanup", "drain"} {
		c.helm.must("upgrade", release, chartDir(c.t), "--reset-then-reuse-values", "--set=cleanup=false,drain=false")
		p := n.startAgent(&c.daemonSet().Spec.Template.Spec)
		p.Signal(unix.SIGTERM)
		if err := p.Wait(); err != nil {
			c.t.Fatal(err)
		}
		c.helm.must("upgrade", release, chartDir(c.t), "--reset-then-reuse-values", "--set="+value+"=true")
		pod := &c.daemonSet().Spec.Template.Spec
		p = n.start(pod, initContainer(c.t, pod, "cleanup"))
		lab.Eventually(c.t, value+" ends", p.Ended)
		left, err := os.ReadDir(n.BPFFS)
		if p.Wait() != nil || err != nil || len(left) > 0 {
			c.t.Errorf("%s: %v, left on the node: %v, %v", value, p.Wait(), left, err)
		}
	}
}

// cleansUp runs the container that removes what kube-proxy left, also in
// iptables-legacy.
func cleansUp(c *cluster) {
	lab.Need(c.t, "iptables-legacy", "iptables-nft")
	c.helm.must("upgrade", release, chartDir(c.t), "--reset-then-reuse-values", "--set=cleanup=false,drain=false,cleanupKubeProxy=true")
	pod := &c.daemonSet().Spec.Template.Spec
	n := newNode(c)
	programs := []string{"iptables-legacy", "iptables-nft"}
	for _, iptables := range programs {
		for _, args := range []string{"-N KUBE-SERVICES", "-A OUTPUT -m comment --comment kubernetes_service_portals -j KUBE-SERVICES"} {
			words := strings.Fields(args)
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "_", " ")
			}
			if out, err := n.Output(iptables, append([]string{"-t", "nat"}, words...)...); err != nil {
				c.t.Fatalf("%s %s: %v %s", iptables, args, err, out)
			}
		}
	}
	p := n.start(pod, initContainer(c.t, pod, "cleanup-kube-proxy"))
	lab.Eventually(c.t, "the container ends", p.Ended)
	if err := p.Wait(); err != nil {
		c.t.Fatal(err)
	}
	for _, iptables := range programs {
		if rules, err := n.Output(iptables+"-save", "-t", "nat"); err != nil || strings.Contains(rules, "KUBE-SERVICES") {
			c.t.Errorf("%s has, after the container ended, %v:\n%s", iptables, err, rules)
		}
	}
}

// rare are rights that the agent needs for what does not happen here: an event that
// comes again is patched.
var rare = map[string]bool{
	"patch events.k8s.io/events": true,
}

// checkRole compares the requests of a service account with the role.
func checkRole(c *cluster, account string, p *lab.Process) {
	c.t.Helper()
	role, err := c.client.RbacV1().ClusterRoles().Get(c.t.Context(), release, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	allowed := make(map[string]bool)
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				allowed[verb+" "+rule.APIGroups[0]+"/"+resource] = true
			}
		}
	}
	asked := c.requests("system:serviceaccount:" + namespace + ":" + account)
	for _, request := range slices.Sorted(maps.Keys(asked)) {
		if !allowed[request] {
			c.t.Errorf("the agent asks to %s, which the role does not allow", request)
		}
	}
	for _, right := range slices.Sorted(maps.Keys(allowed)) {
		if !asked[right] && !rare[right] {
			c.t.Errorf("the role allows to %s, which the agent does not ask for", right)
		}
	}
	if strings.Contains(p.Output(), "forbidden") {
		c.t.Error("the agent's log says that something is forbidden")
	}
}

// checkForbidden: the account may not do what would let one in who has its token.
func checkForbidden(c *cluster, account string) {
	c.t.Helper()
	for _, what := range []authorizationv1.ResourceAttributes{
		{Verb: "get", Resource: "secrets"}, {Verb: "list", Resource: "secrets"},
		{Verb: "get", Resource: "configmaps"}, {Verb: "create", Resource: "pods"},
		{Verb: "create", Resource: "pods", Subresource: "exec"}, {Verb: "update", Resource: "services"},
		{Verb: "patch", Resource: "nodes"}, {Verb: "patch", Resource: "services", Subresource: "status"},
		{Verb: "create", Resource: "endpointslices", Group: "discovery.k8s.io"},
		{Verb: "create", Resource: "serviceaccounts", Subresource: "token"},
	} {
		what.Namespace = namespace
		review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(c.t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + namespace + ":" + account,
				Groups:             []string{"system:serviceaccounts", "system:authenticated"},
				ResourceAttributes: &what,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if review.Status.Allowed {
			c.t.Errorf("the account may %s %s/%s", what.Verb, what.Resource, what.Subresource)
		}
	}
}

// TestCapabilities: without privileged the container drops all rights and adds some.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	context := render(t, "").Containers[0].SecurityContext
	if drop := context.Capabilities.Drop; len(drop) != 1 || drop[0] != "ALL" || context.Privileged != nil {
		t.Errorf("drops %v, privileged %v", drop, context.Privileged)
	}
	context = render(t, "privileged: true").Containers[0].SecurityContext
	if context.Privileged == nil || !*context.Privileged || context.Capabilities != nil {
		t.Errorf("privileged: true makes %+v", context)
	}
}
