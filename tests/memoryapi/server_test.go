package memoryapi_test

import (
	"net/http/httptest"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/memoryapi"
)

// TestServer: a client of Kubernetes lists and watches what was put, as far as it selects it.
func TestServer(t *testing.T) {
	a := memoryapi.New()
	server := httptest.NewServer(a)
	defer server.Close()
	client, err := kubeclient.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	service := func(name, ip string, labels map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
	}
	put := func(services ...*corev1.Service) {
		memoryapi.Replace(a, "services", services, func(a, b *corev1.Service) bool {
			return reflect.DeepEqual(a.Labels, b.Labels) && reflect.DeepEqual(a.Spec, b.Spec)
		})
	}
	put(service("a", "10.96.0.1", nil), service("b", "10.96.0.2", map[string]string{"foreign": ""}))
	selected := metav1.ListOptions{LabelSelector: "!foreign"}
	list, err := client.CoreV1().Services("").List(t.Context(), selected)
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Fatalf("listed %v, %v", list, err)
	}
	selected.ResourceVersion = list.ResourceVersion
	events, err := client.CoreV1().Services("").Watch(t.Context(), selected)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	expect := func(kind watch.EventType, name, ip string) {
		t.Helper()
		e := <-events.ResultChan()
		s, ok := e.Object.(*corev1.Service)
		if !ok || e.Type != kind || s.Name != name || s.Spec.ClusterIP != ip {
			t.Fatalf("watched %s %v, want %s %s", e.Type, e.Object, kind, name)
		}
	}
	put(service("a", "10.96.0.1", nil), service("b", "10.96.0.2", nil))
	expect(watch.Added, "b", "10.96.0.2")
	put(service("a", "10.96.0.3", nil), service("b", "10.96.0.2", nil))
	expect(watch.Modified, "a", "10.96.0.3")
	put(service("a", "10.96.0.3", map[string]string{"foreign": ""}), service("b", "10.96.0.2", nil))
	expect(watch.Deleted, "a", "10.96.0.3")
	put()
	expect(watch.Deleted, "b", "10.96.0.2")
}
