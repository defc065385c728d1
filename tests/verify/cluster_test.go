package verify_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/lab"
)

// cluster are the Services and EndpointSlices of an API server.
type cluster struct {
	*kubeclient.Client
}

// service creates or updates a Service.
func (c cluster) service(ctx context.Context, manifest string) error {
	s := new(corev1.Service)
	if err := yaml.UnmarshalStrict([]byte(manifest), s); err != nil {
		return err
	}
	return put(ctx, c.CoreV1().Services("default"), s)
}

// slice creates or updates an EndpointSlice.
func (c cluster) slice(ctx context.Context, manifest string) error {
	s := new(discoveryv1.EndpointSlice)
	if err := yaml.UnmarshalStrict([]byte(manifest), s); err != nil {
		return err
	}
	return put(ctx, c.DiscoveryV1().EndpointSlices("default"), s)
}

// resource are the objects of a kind.
type resource[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// put creates an object, or updates the one of this name.
func put[T any](ctx context.Context, r resource[T], object T) error {
	_, err := r.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = r.Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// register creates the Node object of [lab.NodeName].
func (c cluster) register(t *testing.T) {
	t.Helper()
	_, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}}, metav1.CreateOptions{})
	check(t, err)
}

// newClusterNode makes a node whose agent serves the manifests by an API server, which has no Node yet.
func newClusterNode(t *testing.T) (*node, cluster) {
	t.Helper()
	server := apiserver.Start(t, "--service-cluster-ip-range=10.96.0.0/16,fd96::/112")
	c := cluster{server.Client(t)}
	for _, m := range manifests {
		put := c.service
		if strings.Contains(m, "kind: EndpointSlice") {
			put = c.slice
		}
		// An API server has 10.96.0.1 for itself.
		check(t, put(t.Context(), strings.Replace(m, "clusterIPs: [10.96.0.1,", "ipFamilyPolicy: PreferDualStack, clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11,", 1)))
	}
	h := lab.NewHost(t)
	h.Relay(strings.TrimPrefix(server.Config.Host, "https://"))
	return serve(t, h, nil, "--manifests=", "--kubeconfig", server.Kubeconfig, "--node-ip", lab.Node4.String()), c
}

// TestCluster: what is wrong is found against a real API server as against manifests, and nothing while
// Services change or once an agent has mended it.
func TestCluster(t *testing.T) {
	t.Parallel()
	n, c := newClusterNode(t)
	c.register(t)
	n.wantNothing(t, "while the agent runs")
	n.churn(t, func(ctx context.Context, i int) error {
		name, count := fmt.Sprintf("more-%d", i%5), 1+i%3
		if i%7 == 0 {
			err := c.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{})
			if !apierrors.IsNotFound(err) {
				return err
			}
		}
		return errors.Join(
			c.slice(ctx, lab.Slice("web", "web:8080/TCP,dns:8080/UDP", lab.Backend4(1), lab.Backend4(2), lab.Backend4(3+count))),
			c.slice(ctx, lab.Slice(name, "8080/TCP", lab.Backend4(count))),
			c.service(ctx, lab.Service(name, fmt.Sprintf(`{clusterIP: 10.96.1.%d, ports: [{port: %d}]}`, 1+i%5, 80+i%2))),
		)
	})
	check(t, c.slice(t.Context(), manifests[1]))
	n.wantNothing(t, "after the last change")
	n.end()
	n.damage(t, serviceDamages(), endpointDamages())
	check(t, c.service(t.Context(), lab.Service("late", `{clusterIP: 10.96.0.9, ports: [{port: 80}]}`)))
	n.want(t, "frontend-missing", "10.96.0.9:80/TCP", "default/late")
	n.mend()
	n.wantNothing(t, "after an agent has run")
}

// TestNoSuchNode: that no Node has the name the agent goes by is found by the command and the agent, until one has it.
func TestNoSuchNode(t *testing.T) {
	t.Parallel()
	n, c := newClusterNode(t)
	n.want(t, "node", fmt.Sprintf("no Node %q", lab.NodeName))
	n.wantOfMachine(t, map[string]int{"node": 1})
	if log := n.Standalone.Output(); !contains(log, `kind="node"`, "hostnameOverride") {
		t.Errorf("the log does not tell:\n%s", log)
	}
	c.register(t)
	n.wantOfMachine(t, nil)
	n.wantNothing(t, "with the Node")
}
