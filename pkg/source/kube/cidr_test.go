package kube

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// lastRanges is a sink that keeps the ranges and addresses which it was told last, and whether a Service is served.
type lastRanges struct {
	told    []netip.Prefix
	foreign []netip.Addr
	served  bool
}

func (l *lastRanges) Apply(u source.Update) {
	if u.ServiceCIDRs != nil {
		l.told, l.foreign = u.ServiceCIDRs, u.ForeignIPs
	}
	if len(u.PutServices)+len(u.DeleteServices) > 0 {
		l.served = len(u.PutServices) > 0
	}
}
func (l *lastRanges) Synced() {}

// TestAddressesAreLeftToOtherProxies: the address of a Service that another proxy has is told while that
// has it, and the ranges stay.
func TestAddressesAreLeftToOtherProxies(t *testing.T) {
	var sink lastRanges
	v4, v6 := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112")
	r := newRanges(&sink, []netip.Prefix{v6, v4})
	services := newServices(&sink, convert.Allowed{}, r)
	ip := netip.MustParseAddr("10.96.7.7")
	expect := func(when string, foreign ...netip.Addr) {
		t.Helper()
		if want := []netip.Prefix{v4, v6}; !slices.Equal(sink.told, want) || !slices.Equal(sink.foreign, foreign) {
			t.Errorf("%s: %v but for %v, want %v but for %v", when, sink.told, sink.foreign, want, foreign)
		}
	}
	if err := services.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	r.start()
	expect("at the start")
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "theirs", Labels: map[string]string{convert.LabelServiceProxyName: "other"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.7.7", ClusterIPs: []string{"10.96.7.7"}},
	}
	if err := services.Add(theirs); err != nil {
		t.Fatal(err)
	}
	expect("with a Service of another proxy", ip)
	for _, served := range []bool{true, false, true} {
		theirs.Labels = nil
		if !served {
			theirs.Labels = map[string]string{convert.LabelServiceProxyName: ""}
		}
		if err := services.Update(theirs); err != nil {
			t.Fatal(err)
		}
		if sink.served != served {
			t.Errorf("its labels are %v, served: %v", theirs.Labels, sink.served)
		}
		if served {
			expect("with a Service that was another proxy's")
		} else {
			expect("with a Service that has become another proxy's", ip)
		}
	}
	theirs.Labels = map[string]string{convert.LabelServiceProxyName: "other"}
	if err := services.Update(theirs); err != nil {
		t.Fatal(err)
	}
	if err := services.Delete(theirs); err != nil {
		t.Fatal(err)
	}
	expect("without")
	if !slices.Equal(r.given, []netip.Prefix{v6, v4}) {
		t.Errorf("what was given is now %v", r.given)
	}
}
