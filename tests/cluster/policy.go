package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyTask is its name.
const policyTask = "policy"

// policyPath is how Services are served to pods.
type policyPath struct {
	name string
	// config is changed for it in Beeline's configuration.
	config map[string]any
}

// policyPaths are those of Beeline. A host's sockets are served as such in both.
var policyPaths = []policyPath{
	{"sockets", nil},
	{"packets", map[string]any{"socketLB": "host-namespace-only", "podDevices": []string{"veth*", "cali*"}}},
}

// policyRun is a cluster with servers and clients of which some must not reach each other.
type policyRun struct {
	*cluster
	services map[string]*corev1.Service
	clients  map[string]policyClient
	faults   []error
}

// policyResult is what was seen on one path, as it is written to a file.
type policyResult struct {
	Path string
	// Readings are what came of each policy, by its name.
	Readings map[string]policyReading
	// Open is what became of connections that were open when a policy came which denies them, by
	// the client.
	Open map[string]string
}

// policyFile returns the file of the results of a kind of cluster. The folder of that name is of
// upstream's tests, which empty it.
func policyFile(reports, variant string) string {
	return filepath.Join(reports, "policy", variant+".json")
}

// policy tries NetworkPolicies: which flows are allowed, which are denied and which address the
// server sees, for pods whose sockets are served and for such whose packets are. It fails when
// a flow is not as the policy says, and writes what it saw for the table.
func policy(ctx context.Context, c *cluster) error {
	r := &policyRun{cluster: c}
	if err := r.start(ctx); err != nil {
		return err
	}
	paths := policyPaths
	if c.Proxy == proxyKubeProxy {
		paths = []policyPath{{name: "packets"}}
	}
	var results []policyResult
	for _, path := range paths {
		result, err := r.tryPath(ctx, path)
		if err != nil {
			return errors.Join(append(r.faults, fmt.Errorf("%s: %w", path.name, err))...)
		}
		results = append(results, result)
	}
	b, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	file := policyFile(c.Reports, c.variant())
	return errors.Join(append(r.faults, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, b, 0o644))...)
}

// start starts servers and clients. Servers are on the first node; the load balancer leads to the
// second, but where the Service's policy is Local.
func (r *policyRun) start(ctx context.Context) error {
	type service struct {
		Name, Server string
		Policy       corev1.ServiceExternalTrafficPolicy
	}
	services := []service{
		{"server", "server", corev1.ServiceExternalTrafficPolicyCluster},
		{"server-local", "server", corev1.ServiceExternalTrafficPolicyLocal},
		{"other", "other", corev1.ServiceExternalTrafficPolicyCluster},
		{"control", "control", corev1.ServiceExternalTrafficPolicyCluster},
	}
	r.clients = policyClients()
	if err := r.applyWith(ctx, "policy.yaml", map[string]any{
		"Namespace": policyNamespace, "Strangers": strangeNamespace, "LoadImage": loadImage, "Near": nodeName(1),
		"Servers": []string{"server", "other", "control"}, "Services": services, "Clients": r.clients, "Port": 9555,
	}); err != nil {
		return err
	}
	for _, namespace := range []string{policyNamespace, strangeNamespace} {
		if _, err := r.kubectl(ctx, "wait", "--namespace="+namespace, "--for=condition=Ready", "--timeout="+bootTimeout.String(), "pods", "--all"); err != nil {
			return err
		}
	}
	r.services = make(map[string]*corev1.Service)
	for _, s := range services {
		object, err := r.assignedService(ctx, policyNamespace, s.Name)
		if err != nil {
			return err
		}
		r.services[s.Name] = object
	}
	for name, client := range r.clients {
		if client.Namespace == "" {
			continue
		}
		pod, err := r.client.CoreV1().Pods(client.Namespace).Get(ctx, client.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, ip := range pod.Status.PodIPs {
			client.addrs = append(client.addrs, ip.IP)
		}
		r.clients[name] = client
	}
	return r.leadToFarNode(r.services["server"])
}

// leadToFarNode has connections from here to a Service's load balancer go to the second node.
func (r *policyRun) leadToFarNode(s *corev1.Service) error {
	var errs []error
	for f, ingress := range s.Status.LoadBalancer.Ingress {
		rule := netlink.NewRule()
		rule.Family = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}[f]
		rule.Dst = hostNet(ingress.IP)
		rule.Table = balancerTable(2)
		rule.Priority = 1
		errs = append(errs, netlink.RuleAdd(rule))
	}
	return errors.Join(errs...)
}

// tryPath tries every policy on one path.
func (r *policyRun) tryPath(ctx context.Context, path policyPath) (policyResult, error) {
	result := policyResult{Path: path.name, Readings: make(map[string]policyReading)}
	if path.config != nil {
		if err := r.configure(ctx, path.config); err != nil {
			return result, err
		}
	}
	rules := policyRules(r.Nodes)
	for _, rule := range rules {
		reading, err := r.try(ctx, rule)
		if err != nil {
			r.fault("%s: %s: %w", path.name, rule.name, err)
		}
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		result.Readings[rule.name] = reading
		if rule.name == noPolicy && r.Proxy == proxyBeeline {
			if err := r.checkPath(ctx, path); err != nil {
				return result, err
			}
		}
		// What was denied is allowed again, so it was the policy.
		if _, err := r.try(ctx, rules[0]); err != nil {
			r.fault("%s: after %s: %w", path.name, rule.name, err)
		}
		r.say("%s: %s: %s", path.name, rule.name, reading.summary())
	}
	var err error
	result.Open, err = r.tryOpen(ctx, rules[1])
	r.say("%s: connections that are open when a policy comes: %v", path.name, result.Open)
	return result, err
}

// fault keeps and tells what must not be. The run goes on.
func (r *policyRun) fault(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	r.say("FAULT: %v", err)
	r.faults = append(r.faults, err)
}

// configure has Beeline serve by another configuration.
func (r *policyRun) configure(ctx context.Context, changes map[string]any) error {
	values, err := r.defaultValues()
	if err != nil {
		return err
	}
	config := values["config"].(map[string]any)
	for name, value := range changes {
		config[name] = value
	}
	return r.installChart(ctx, chartValues{"config": config})
}

// checkPath fails unless a pod that has asked by ClusterIP was served on the path.
func (r *policyRun) checkPath(ctx context.Context, path policyPath) error {
	for _, client := range []string{friendNear, friendFar} {
		n := r.nodes[0]
		if client == friendFar {
			n = r.nodes[1]
		}
		for f, ip := range r.clients[client].addrs {
			out, err := r.beeline(ctx, n, "flow", "list", "--client="+ip, "--service="+policyNamespace+"/server", "--output=json")
			if err != nil {
				return err
			}
			var flows []struct{ ServiceAddress string }
			if err := json.Unmarshal(out, &flows); err != nil {
				return err
			}
			if seen := len(flows) > 0; seen != (path.name == "packets") {
				return fmt.Errorf("%s of %s: its node has seen packets to the Service: %v", policyFamilies[f], client, seen)
			}
		}
	}
	return nil
}

// try applies a policy, waits until all flows are as it says, and removes it. It returns what it
// saw last, and an error that names the flows that are otherwise.
func (r *policyRun) try(ctx context.Context, rule policyRule) (reading policyReading, err error) {
	remove, err := r.applyPolicy(ctx, rule)
	if err != nil {
		return nil, err
	}
	err = r.await(ctx, rule.name, func() (err error) {
		last, err := r.read(ctx)
		if err != nil {
			return err
		}
		reading = last
		return reading.check(rule, r.settings)
	})
	return reading, errors.Join(err, remove())
}

// applyPolicy applies a policy and returns what removes it.
func (r *policyRun) applyPolicy(ctx context.Context, rule policyRule) (remove func() error, err error) {
	if rule.spec == nil {
		return func() error { return nil }, nil
	}
	policies := r.client.NetworkingV1().NetworkPolicies(policyNamespace)
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: *rule.spec}
	if _, err := policies.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return func() error { return policies.Delete(ctx, object.Name, metav1.DeleteOptions{}) }, nil
}
