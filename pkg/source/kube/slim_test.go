package kube

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// randomSlice sets each field that there is, or not.
func randomSlice(r *rand.Rand) *discoveryv1.EndpointSlice {
	is := func() bool { return r.IntN(3) > 0 }
	some := func(list ...string) string { return list[r.IntN(len(list))] }
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: some("a", "b"), ResourceVersion: "77", UID: "1",
			Labels:      map[string]string{discoveryv1.LabelServiceName: some("web", "dns")},
			Annotations: map[string]string{convert.AnnotationWeight: some("3", "wrong")},
		},
		AddressType: discoveryv1.AddressType(some("IPv4", "IPv6", "FQDN")),
	}
	for range r.IntN(3) {
		p := discoveryv1.EndpointPort{Port: new(int32(r.IntN(1 << 17)))}
		if is() {
			p.Name, p.Protocol, p.AppProtocol = new(some("", "http")), new(corev1.Protocol(some("TCP", "UDP"))), new("http")
		}
		s.Ports = append(s.Ports, p)
	}
	for range r.IntN(5) {
		s.Endpoints = append(s.Endpoints, randomEndpoint(r, is, some))
	}
	return s
}

func randomEndpoint(r *rand.Rand, is func() bool, some func(...string) string) discoveryv1.Endpoint {
	var ep discoveryv1.Endpoint
	for range r.IntN(3) {
		ep.Addresses = append(ep.Addresses, some("10.0.0.1", "10.0.0.2", "fd00::1", ""))
	}
	condition := func() *bool {
		if is() {
			return new(r.IntN(2) == 0)
		}
		return nil
	}
	ep.Conditions = discoveryv1.EndpointConditions{Ready: condition(), Serving: condition(), Terminating: condition()}
	if is() {
		ep.NodeName, ep.Zone = new(some("", "node")), new(some("", "zone"))
	}
	if is() {
		ep.Hostname, ep.DeprecatedTopology = new("host"), map[string]string{"a": "b"}
		ep.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "pod", UID: types.UID("1")}
	}
	if is() {
		ep.Hints = &discoveryv1.EndpointHints{}
		for range r.IntN(3) {
			ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: some("a", "b")})
			ep.Hints.ForNodes = append(ep.Hints.ForNodes, discoveryv1.ForNode{Name: some("a", "b")})
		}
	}
	return ep
}

// checkSlim compares what is served of a slice and what a reflector reads of it.
func checkSlim(t *testing.T, got *slimSlice, want *discoveryv1.EndpointSlice) {
	t.Helper()
	if !reflect.DeepEqual(got.ObjectMeta, want.ObjectMeta) || got.GroupVersionKind() != want.GroupVersionKind() {
		t.Fatalf("decoded %v %+v, want %v %+v", got.GroupVersionKind(), got.ObjectMeta, want.GroupVersionKind(), want.ObjectMeta)
	}
	if got, want := convert.Slice(&got.EndpointSlice), convert.Slice(want); !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded %+v, want %+v", got, want)
	}
}

// TestSlim decodes slices and lists of them as a client does, in both content types.
func TestSlim(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, addSlimSlices(scheme))
	theirs := runtime.NewScheme()
	must(t, discoveryv1.AddToScheme(theirs))
	r := rand.New(rand.NewPCG(1, 1))
	for _, contentType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(contentType, func(t *testing.T) {
			ours, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).WithoutConversion().SupportedMediaTypes(), contentType)
			api, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(theirs).SupportedMediaTypes(), contentType)
			decode := func(o runtime.Object) runtime.Object {
				var data bytes.Buffer
				must(t, api.Serializer.Encode(o, &data))
				got, _, err := ours.Serializer.Decode(data.Bytes(), nil, nil)
				must(t, err)
				return got.DeepCopyObject()
			}
			for range 500 {
				list := &discoveryv1.EndpointSliceList{
					TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"},
					ListMeta: metav1.ListMeta{ResourceVersion: "78", Continue: "more"},
				}
				for range r.IntN(4) {
					s := randomSlice(r)
					checkSlim(t, decode(s).(*slimSlice), s)
					s.TypeMeta = metav1.TypeMeta{}
					list.Items = append(list.Items, *s)
				}
				got := decode(list).(*slimSlices)
				if got.ListMeta != list.ListMeta || len(got.Items) != len(list.Items) {
					t.Fatalf("decoded %+v, want %+v", got, list)
				}
				for i := range list.Items {
					checkSlim(t, &got.Items[i], &list.Items[i])
				}
			}
		})
	}
}

// FuzzSlim takes what it and the API's own decoder take in the same way.
func FuzzSlim(f *testing.F) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 20 {
		data, err := randomSlice(r).Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:r.IntN(len(data))])
		f.Add(append(data, data...)) // a field that is there again
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want discoveryv1.EndpointSlice
		var got slimSlice
		if want.Unmarshal(data) == nil && got.Unmarshal(data) == nil {
			checkSlim(t, &got, &want)
		}
	})
}

// TestSlimEnds fails at every length but the whole of a slice, and does not panic.
func TestSlimEnds(t *testing.T) {
	s := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{
		Addresses: []string{"10.0.0.1"}, NodeName: new("node"),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
	}}}
	data, err := s.Marshal()
	must(t, err)
	for n := range data {
		var want discoveryv1.EndpointSlice
		var got slimSlice
		if wantErr, err := want.Unmarshal(data[:n]), got.Unmarshal(data[:n]); (wantErr == nil) != (err == nil) {
			t.Errorf("the first %d of %d bytes: %v, want %v", n, len(data), err, wantErr)
		}
	}
}

// BenchmarkSlim decodes a slice as the controller makes it, and by the API's decoder.
func BenchmarkSlim(b *testing.B) {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-x7", CreationTimestamp: metav1.NewTime(time.Unix(1, 0)),
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for i := range 100 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprint("10.1.0.", i)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprint("node-", i)), Zone: new(fmt.Sprint("zone-", i%3)),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprint("web-7d4b9c6f8d-", i), UID: "e5f0e1c2-7b3a-4c55-9a51-3d7a0f0c9b1d",
			},
		})
	}
	data, err := s.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for name, decode := range map[string]func() error{
		"slim": func() error { return new(slimSlice).Unmarshal(data) },
		"api":  func() error { return new(discoveryv1.EndpointSlice).Unmarshal(data) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
