package differential

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestExplainClash: of an address that two Services want, the explanation names the one that goes
// without it, at the address and by the name of either. The cluster's addresses go first, then those of its load
// balancer, and of two external IPs that of the older Service.
func TestExplainClash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Beeline")
	w.everywhere = true
	w.startBeeline(nodePortsEverywhere)
	c := &cluster{zone: zones[0]}
	disputed := clusterIP(0)[0].String()
	balanced, both := balancerIP(1)[0].String(), externalIP(1)[0].String()
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i, external := range [][]string{{externalIP(0)[0].String(), balanced}, {disputed, both}, nil, {both}} {
		ip := clusterIP(i)[0].String()
		c.services = append(c.services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Namespace: "default", CreationTimestamp: metav1.NewTime(created.AddDate(0, 0, -i))},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				ExternalIPs: external, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		})
		c.slices = append(c.slices, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: serviceName(i), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(targetPorts[0]))}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{podAddrs[0][0].String()}}},
		})
	}
	c.services[2].Spec.Type = corev1.ServiceTypeLoadBalancer
	c.services[2].Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balanced}}
	if err := w.apply(c); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		asked string
		says  []string
	}{
		{disputed + ":80", []string{"ClusterIP 10.96.0.10:80 of default/svc-0", "default/svc-1 wants 10.96.0.10:80/TCP as ExternalIP, too, and goes without it, for default/svc-0 has it"}},
		{"default/svc-1", []string{"ClusterIP 10.96.0.11:80 of default/svc-1", "ClusterIP 10.96.0.10:80 of default/svc-0", "default/svc-1 wants 10.96.0.10:80/TCP"}},
		{balanced + ":80", []string{"LoadBalancer " + balanced + ":80 of default/svc-2", "default/svc-0 wants " + balanced + ":80/TCP as ExternalIP, too, and goes without it, for default/svc-2 has it"}},
		{both + ":80", []string{"ExternalIP " + both + ":80 of default/svc-3", "default/svc-1 wants " + both + ":80/TCP as ExternalIP, too, and goes without it, for default/svc-3 has it"}},
		{"default/svc-0", []string{"default/svc-1 wants 10.96.0.10:80/TCP"}},
	} {
		w.explains(t, tt.asked, tt.says...)
	}
	if out := w.explain(externalIP(0)[0].String() + ":80"); strings.Contains(out, "clash") {
		t.Errorf("an address that one Service wants:\n%s", out)
	}
}

// explain returns what the command explains on the node.
func (w *world) explain(asked string) string {
	w.t.Helper()
	var out strings.Builder
	err := w.host.Run(func() error {
		cli.Run(w.t.Context(), cli.Env{Out: &out, Err: &out, Now: time.Now}, "--bpffs", w.host.BPFFS, "explain", asked)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.String()
}

// explains waits until the command says all of this: what another Service has is noted after it is
// served.
func (w *world) explains(t *testing.T, asked string, says ...string) {
	t.Helper()
	lab.Eventually(t, "explain "+asked+" says "+strings.Join(says, " and "), func() bool {
		out := w.explain(asked)
		for _, text := range says {
			if !strings.Contains(out, text) {
				return false
			}
		}
		return true
	})
}
