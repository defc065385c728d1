package differential_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/lab"
)

// events waits for an event of the reason from both proxies, all about the object.
func (r *rig) events(reason, object string) (beeline, kubeProxy *eventsv1.Event) {
	r.t.Helper()
	lab.Eventually(r.t, "the event "+reason+" of both", func() bool {
		list, err := r.client.EventsV1().Events("").List(r.t.Context(), metav1.ListOptions{})
		r.must(err)
		for i := range list.Items {
			e := &list.Items[i]
			switch {
			case e.Reason != reason || e.Regarding.Name != object:
			case e.ReportingController == "beeline-agent":
				beeline = e
			case e.ReportingController == "kube-proxy":
				kubeProxy = e
			}
		}
		return beeline != nil && kubeProxy != nil
	})
	return beeline, kubeProxy
}

// testEvents: what both tell the cluster, about the same objects.
func testEvents(t *testing.T, r *rig) {
	compare := func(reason, object string) {
		t.Helper()
		beeline, kubeProxy := r.events(reason, object)
		if beeline.Type != kubeProxy.Type || beeline.Regarding != kubeProxy.Regarding || beeline.Namespace != kubeProxy.Namespace {
			t.Errorf("%s: Beeline tells\n%+v\nkube-proxy tells\n%+v", reason, beeline, kubeProxy)
		}
	}
	compare("Starting", lab.NodeName)

	// A port that something else on both hosts has.
	const taken = 32766
	for _, h := range r.hosts() {
		var l net.Listener
		r.must(h.Run(func() (err error) {
			l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", taken))
			return err
		}))
		defer l.Close()
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "blocked"},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort:   taken,
			Ports:                 []corev1.ServicePort{{Port: 80}},
		},
	}
	_, err := r.client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
	r.must(err)
	compare("FailedToStartServiceHealthcheck", "blocked")
	beeline, kubeProxy := r.events("FailedToStartServiceHealthcheck", "blocked")
	if beeline.Note != kubeProxy.Note || beeline.Action != kubeProxy.Action || !strings.Contains(beeline.Note, fmt.Sprint(taken)) {
		t.Errorf("Beeline says %s: %q, kube-proxy %s: %q", beeline.Action, beeline.Note, kubeProxy.Action, kubeProxy.Note)
	}
	port := r.balanced("free")
	r.same(t, "another Service", fmt.Sprintf("http://127.0.0.1:%d/", port), says(503, `"name": "free"`))
}
