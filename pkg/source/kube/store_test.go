package kube

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// updates is a sink that remembers the updates it was given.
type updates struct{ all []source.Update }

func (r *updates) Apply(u source.Update) { r.all = append(r.all, u) }
func (r *updates) Synced()               {}

// take returns the updates since the last call.
func (r *updates) take() []source.Update {
	u := r.all
	r.all = nil
	return u
}

func service(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: clusterIP,
			Ports:     []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func endpointSlice(name, service string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names returns the names of Services put and deleted by the only update of got.
func names(t *testing.T, got []source.Update) (put, gone sets.Set[string]) {
	t.Helper()
	if len(got) != 1 {
		t.Fatalf("got %d updates %+v, want one", len(got), got)
	}
	put, gone = sets.New[string](), sets.New[string]()
	for _, s := range got[0].PutServices {
		put.Insert(s.Name.Name)
	}
	for _, n := range got[0].DeleteServices {
		gone.Insert(n.Name)
	}
	return put, gone
}

func TestFullListIsOneUpdateOfWhatDiffers(t *testing.T) {
	var sink updates
	st := newServices(&sink, convert.Allowed{}, newRanges(&sink, nil))
	must(t, st.Replace([]any{service("kept", "10.0.0.1"), service("moved", "10.0.0.2"), service("gone", "10.0.0.3")}, "1"))
	if put, gone := names(t, sink.take()); !put.Equal(sets.New("kept", "moved", "gone")) || gone.Len() != 0 {
		t.Errorf("first list: put %v, deleted %v", put, gone)
	}
	must(t, st.Replace([]any{service("kept", "10.0.0.1"), service("moved", "10.0.0.9"), service("new", "10.0.0.4")}, "2"))
	if put, gone := names(t, sink.take()); !put.Equal(sets.New("moved", "new")) || !gone.Equal(sets.New("gone")) {
		t.Errorf("second list: put %v, deleted %v", put, gone)
	}
	must(t, st.Replace([]any{service("moved", "10.0.0.9"), service("new", "10.0.0.4"), service("kept", "10.0.0.1")}, "3"))
	if got := sink.take(); got != nil {
		t.Errorf("the same list again: updates %+v, want none", got)
	}
}

func TestListedOnlyAfterTheListWasApplied(t *testing.T) {
	var sink updates
	st := newServices(&sink, convert.Allowed{}, newRanges(&sink, nil))
	select {
	case <-st.listed:
		t.Fatal("listed before any list")
	default:
	}
	must(t, st.Replace(nil, "1"))
	select {
	case <-st.listed:
	default:
		t.Fatal("not listed after an empty list")
	}
	must(t, st.Replace([]any{service("a", "10.0.0.1")}, "2"))
}

func TestMetadataChangeIsNoUpdate(t *testing.T) {
	var sink updates
	st := newServices(&sink, convert.Allowed{}, newRanges(&sink, nil))
	must(t, st.Replace([]any{service("a", "10.0.0.1")}, "1"))
	sink.take()

	changed := service("a", "10.0.0.1")
	changed.ResourceVersion = "77"
	changed.Annotations = map[string]string{"who": "me"}
	changed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	must(t, st.Update(changed))
	if got := sink.take(); got != nil {
		t.Errorf("updates %+v, want none", got)
	}
	changed.Spec.Ports[0].Port = 81
	must(t, st.Update(changed))
	if put, _ := names(t, sink.take()); !put.Has("a") {
		t.Errorf("port changed: put %v, want a", put)
	}
}

func TestServiceNoLongerServedIsDeleted(t *testing.T) {
	var sink updates
	st := newServices(&sink, convert.Allowed{}, newRanges(&sink, nil))
	must(t, st.Replace([]any{service("a", "10.0.0.1")}, "1"))
	sink.take()

	external := service("a", "")
	external.Spec.Type = corev1.ServiceTypeExternalName
	must(t, st.Update(external))
	if put, gone := names(t, sink.take()); put.Len() != 0 || !gone.Has("a") {
		t.Errorf("put %v, deleted %v, want a deleted", put, gone)
	}
	must(t, st.Delete(external))
	if got := sink.take(); got != nil {
		t.Errorf("deleting what was never served: updates %+v, want none", got)
	}
	must(t, st.Add(service("a", "10.0.0.1")))
	if put, _ := names(t, sink.take()); !put.Has("a") {
		t.Errorf("served again: put %v, want a", put)
	}
}

func TestSliceMovesToAnotherService(t *testing.T) {
	var sink updates
	st := newSlices(&sink, nil)
	must(t, st.Replace([]any{endpointSlice("s-1", "blue", "10.1.0.1")}, "1"))
	sink.take()
	must(t, st.Update(endpointSlice("s-1", "green", "10.1.0.1")))
	got := sink.take()
	if len(got) != 1 || len(got[0].PutSlices) != 1 || got[0].PutSlices[0].Service != "green" {
		t.Errorf("updates %+v, want one slice of green", got)
	}
	must(t, st.Update(endpointSlice("s-1", "", "10.1.0.1")))
	got = sink.take()
	if len(got) != 1 || len(got[0].DeleteSlices) != 1 || len(got[0].PutSlices) != 0 {
		t.Errorf("label removed: updates %+v, want the slice deleted", got)
	}
}

// The reflector collects a streamed list in a store of its own, which calls the
// transformer and needs a key from what that returns.
func TestStreamedListPassesTheReflectorsStore(t *testing.T) {
	var sink updates
	st := newServices(&sink, convert.Allowed{}, newRanges(&sink, nil))
	stream := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(st.Transformer()))
	must(t, stream.Add(service("a", "10.0.0.1")))
	must(t, stream.Add(service("b", "10.0.0.2")))
	headless := service("headless", corev1.ClusterIPNone)
	must(t, stream.Add(headless))
	must(t, st.Replace(stream.List(), "1"))
	if put, _ := names(t, sink.take()); !put.Equal(sets.New("a", "b")) {
		t.Errorf("put %v, want a and b", put)
	}
	if err := st.Add(&corev1.Node{}); err == nil {
		t.Error("a Node was taken for a Service")
	}
}

func TestNodeStaysWhenItsObjectGoes(t *testing.T) {
	var sink updates
	st := newLocalNode(&sink)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		}},
	}
	must(t, st.Replace([]any{node}, "1"))
	got := sink.take()
	if len(got) != 1 || got[0].LocalNode == nil || got[0].LocalNode.Zone != "z1" ||
		len(got[0].LocalNode.Addrs) != 1 || got[0].LocalNode.Addrs[0] != netip.MustParseAddr("192.0.2.1") {
		t.Fatalf("updates %+v, want node n1 of zone z1 at 192.0.2.1", got)
	}
	heartbeat := node.DeepCopy()
	heartbeat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	must(t, st.Update(heartbeat))
	if got := sink.take(); got != nil {
		t.Errorf("updates %+v of a heartbeat, want none", got)
	}
	must(t, st.Delete(node))
	if got := sink.take(); len(got) != 1 || !got[0].LocalNodeGone || got[0].LocalNode != nil {
		t.Errorf("updates %+v, want that the node is gone and no word of its addresses", got)
	}
	must(t, st.Add(node))
	if got := sink.take(); len(got) != 1 || got[0].LocalNode == nil || got[0].LocalNodeGone {
		t.Errorf("updates %+v, want the node again", got)
	}
}

// TestNodeKeepsItsAddresses: a Node without addresses or ranges of a family, as a kubelet registers it again
// before the cloud's controller has seen it, takes none away.
func TestNodeKeepsItsAddresses(t *testing.T) {
	var sink updates
	st := newLocalNode(&sink)
	node := func(ranges []string, addrs ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
		for _, a := range addrs {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	want := func(what, addrs, ranges string) {
		t.Helper()
		got := sink.take()
		if len(got) == 0 || got[len(got)-1].LocalNode == nil {
			t.Fatalf("%s: updates %+v, want one of the node", what, got)
		}
		if n := got[len(got)-1].LocalNode; fmt.Sprint(n.Addrs) != addrs || fmt.Sprint(n.PodRanges) != ranges {
			t.Errorf("%s: addresses %v and ranges %v, want %s and %s", what, n.Addrs, n.PodRanges, addrs, ranges)
		}
	}
	whole := node([]string{"10.1.0.0/24", "fd01::/64"}, "192.0.2.1", "2001:db8::1")
	must(t, st.Replace([]any{whole}, "1"))
	want("at first", "[192.0.2.1 2001:db8::1]", "[10.1.0.0/24 fd01::/64]")
	must(t, st.Delete(whole))
	must(t, st.Add(node(nil)))
	want("registered again", "[192.0.2.1 2001:db8::1]", "[10.1.0.0/24 fd01::/64]")
	must(t, st.Update(node([]string{"10.2.0.0/24"}, "192.0.2.2")))
	want("with another address of one family", "[192.0.2.2 2001:db8::1]", "[10.2.0.0/24 fd01::/64]")
}

func BenchmarkUpdateOfUnchangedSlice(b *testing.B) {
	var sink updates
	st := newSlices(&sink, nil)
	addrs := make([]string, 100)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String()
	}
	slice := endpointSlice("s", "svc", addrs...)
	if err := st.Replace([]any{slice}, "1"); err != nil {
		b.Fatal(err)
	}
	known := st.known[model.Name{Namespace: "ns", Name: "s"}]
	for b.Loop() {
		if err := st.Update(slice); err != nil {
			b.Fatal(err)
		}
	}
	if st.known[model.Name{Namespace: "ns", Name: "s"}] != known {
		b.Fatal("the slice counted as changed")
	}
}

// TestSameSlice changes each field of a slice and its parts by itself.
func TestSameSlice(t *testing.T) {
	build := func() *model.Slice {
		return &model.Slice{
			Ports: make([]model.SlicePort, 1), Endpoints: []model.Endpoint{{}, {NodeHints: []string{"a"}, ZoneHints: []string{"a"}}},
			Weight: new(uint8(0)), Faults: make([]model.Fault, 1),
		}
	}
	if !sameSlice(build(), build()) {
		t.Fatal("a slice differs from one like it")
	}
	changed := 0
	var change func(path string, at func(*model.Slice) reflect.Value)
	change = func(path string, at func(*model.Slice) reflect.Value) {
		s := build()
		v := at(s)
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.IPv4Unspecified()))
		case bool:
			v.SetBool(!v.Bool())
		case string:
			v.SetString("b")
		default:
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					change(path+"."+v.Type().Field(i).Name, func(s *model.Slice) reflect.Value { return at(s).Field(i) })
				}
				return
			case reflect.Slice:
				for i := range v.Len() {
					change(fmt.Sprintf("%s[%d]", path, i), func(s *model.Slice) reflect.Value { return at(s).Index(i) })
				}
				v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			case reflect.Pointer:
				change(path+".*", func(s *model.Slice) reflect.Value { return at(s).Elem() })
				v.SetZero()
			default:
				v.SetUint(v.Uint() + 1)
			}
		}
		changed++
		if got, want := sameSlice(s, build()), path == ".Triggered"; got != want || sameSlice(build(), s) != want {
			t.Errorf("slices that differ in %s: the same is %v, want %v", path, got, want)
		}
	}
	change("", func(s *model.Slice) reflect.Value { return reflect.ValueOf(s).Elem() })
	if changed < 25 {
		t.Errorf("only %d changes tried", changed)
	}
}
