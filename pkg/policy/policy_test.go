package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// here is the node the cases are about.
var here = &model.LocalNode{Name: "here", Zone: "zone-a"}

// pod is an endpoint of a case; the number becomes an address of each family.
type pod struct {
	number int
	model.Endpoint
}

func ready(number int) pod {
	return pod{number, model.Endpoint{NodeName: "there", Zone: "zone-b", Ready: true, Serving: true}}
}

func draining(number int) pod {
	p := ready(number)
	p.Ready, p.Terminating = false, true
	return p
}

// gone is terminating and does not answer any more.
func gone(number int) pod {
	p := draining(number)
	p.Serving = false
	return p
}

// starting has not become ready yet.
func starting(number int) pod {
	p := ready(number)
	p.Ready, p.Serving = false, false
	return p
}

func (p pod) on(node string) pod { p.NodeName = node; return p }
func (p pod) here() pod          { return p.on(here.Name) }

func (p pod) forNodes(names ...string) pod { p.NodeHints = names; return p }
func (p pod) forZones(names ...string) pod { p.ZoneHints = names; return p }

func podAddr(family model.Family, number int) netip.Addr {
	if family == model.IPv4 {
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(number)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(number)})
}

const targetPort = 8080

func httpSlice(family model.Family, pods ...pod) *model.Slice {
	s := &model.Slice{
		Family: family,
		Ports:  []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: targetPort}},
	}
	for _, p := range pods {
		p.Addr = podAddr(family, p.number)
		s.Endpoints = append(s.Endpoints, p.Endpoint)
	}
	return s
}

var httpPort = model.ServicePort{Name: "http", Protocol: model.TCP, Port: 80}

// set is one of the two.
type set struct {
	Kind     Kind
	Backends []Backend
}

func (s Sets) cluster() set { return s.only(s.Cluster, func(b *Backend) bool { return b.InCluster }) }
func (s Sets) local() set   { return s.only(s.Local, func(b *Backend) bool { return b.InLocal }) }

func (s Sets) only(kind Kind, in func(*Backend) bool) set {
	one := set{Kind: kind}
	for i := range s.Backends {
		if in(&s.Backends[i]) {
			one.Backends = append(one.Backends, s.Backends[i])
		}
	}
	return one
}

// show writes a set as its kind or, for backends, as the numbers of the pods.
// A port other than targetPort is added to the number.
func show(s set) string {
	if s.Kind != Backends && len(s.Backends) == 0 {
		return s.Kind.String()
	}
	if s.Kind != Backends || len(s.Backends) == 0 {
		return fmt.Sprintf("%v with %d backends", s.Kind, len(s.Backends))
	}
	var out []string
	for _, b := range s.Backends {
		raw := b.AddrPort.Addr().AsSlice()
		text := fmt.Sprint(raw[len(raw)-1])
		if b.AddrPort.Port() != targetPort {
			text += fmt.Sprint(":", b.AddrPort.Port())
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

type selectCase struct {
	name           string
	slices         [][]pod
	cluster, local string
}

// runSelectCases runs each case in both families.
func runSelectCases(t *testing.T, node *model.LocalNode, cases []selectCase) {
	t.Helper()
	for _, c := range cases {
		for _, family := range model.Families {
			t.Run(fmt.Sprint(c.name, "/", family), func(t *testing.T) {
				build := func() (list []*model.Slice) {
					for _, pods := range c.slices {
						list = append(list, httpSlice(family, pods...))
					}
					return list
				}
				list := build()
				got := Select(&model.Service{}, httpPort, family, list, node)
				if cluster := show(got.cluster()); cluster != c.cluster {
					t.Errorf("cluster set = %s, want %s", cluster, c.cluster)
				}
				if local := show(got.local()); local != c.local {
					t.Errorf("local set = %s, want %s", local, c.local)
				}
				if !reflect.DeepEqual(list, build()) {
					t.Error("Select changed the slices")
				}
			})
		}
	}
}

func TestReadiness(t *testing.T) {
	runSelectCases(t, here, []selectCase{
		{"no slice", nil, "reject", "reject"},
		{"no endpoint", [][]pod{{}}, "reject", "reject"},
		{"ready, sorted", [][]pod{{ready(3), ready(1).here(), ready(2)}}, "1 2 3", "1"},
		{"none local", [][]pod{{ready(1), ready(2)}}, "1 2", "drop"},
		{"starting only", [][]pod{{starting(1).here()}}, "reject", "reject"},
		{"gone only", [][]pod{{gone(1).here()}}, "reject", "reject"},
		{
			"starting and gone are left out",
			[][]pod{{ready(1), starting(2).here(), gone(3).here()}},
			"1", "drop",
		},
		{
			"serving but neither ready nor terminating is not used",
			[][]pod{{func() pod { p := starting(1).here(); p.Serving = true; return p }()}},
			"reject", "reject",
		},
		{
			"published while not ready: the slice says ready",
			[][]pod{{func() pod { p := gone(1).here(); p.Ready = true; return p }()}},
			"1", "1",
		},
		{"draining is left out beside ready", [][]pod{{ready(1).here(), draining(2).here()}}, "1", "1"},
		{
			"draining when nothing is ready",
			[][]pod{{draining(2), draining(1).here(), gone(3), starting(4).here()}},
			"1 2", "1",
		},
		{"draining elsewhere only", [][]pod{{draining(1)}}, "1", "drop"},
		{
			"local falls back on its own",
			[][]pod{{ready(1), draining(2).here(), draining(3)}},
			"1", "2",
		},
		{
			"cluster does not fall back while any is ready",
			[][]pod{{ready(1).here(), draining(2)}},
			"1", "1",
		},
		{"several slices", [][]pod{{ready(5)}, {}, {ready(2).here()}, {ready(9)}}, "2 5 9", "2"},
	})
}

func TestDuplicates(t *testing.T) {
	runSelectCases(t, here, []selectCase{
		{"twice in one slice", [][]pod{{ready(1), ready(1)}}, "1", "drop"},
		{"later ready wins over starting", [][]pod{{starting(1)}, {ready(1).here()}}, "1", "1"},
		{"later starting wins over ready", [][]pod{{ready(1)}, {starting(1)}}, "reject", "reject"},
		{"later place wins", [][]pod{{ready(1).here()}, {ready(1).on("there")}}, "1", "drop"},
		{"later draining does not win", [][]pod{{ready(1).here()}, {draining(1)}}, "1", "1"},
		{"later gone does not win", [][]pod{{ready(1).here()}, {gone(1)}}, "1", "1"},
		{"later gone does not win over draining", [][]pod{{draining(1).here()}, {gone(1)}}, "1", "1"},
		{"later draining does not win over gone", [][]pod{{gone(1)}, {draining(1)}}, "reject", "reject"},
		{"later ready wins over draining", [][]pod{{draining(1)}, {ready(1).here()}}, "1", "1"},
		{
			"three: the last that is not terminating",
			[][]pod{{ready(1)}, {ready(1).here()}, {gone(1)}, {draining(1)}},
			"1", "1",
		},
		{
			"the loser's hints and readiness do not count",
			[][]pod{
				{ready(1), ready(2).forZones("zone-a"), ready(3).forZones("zone-b")},
				{ready(1).forZones("zone-b")},
			},
			"2", "drop",
		},
	})
}

func TestHints(t *testing.T) {
	runSelectCases(t, here, []selectCase{
		{
			"zone",
			[][]pod{{ready(1).forZones("zone-a"), ready(2).forZones("zone-b"), ready(3).forZones("zone-b", "zone-a")}},
			"1 3", "drop",
		}, {
			"zone, one endpoint without hints",
			[][]pod{{ready(1).forZones("zone-a"), ready(2).forZones("zone-b"), ready(3)}},
			"1 2 3", "drop",
		}, {
			"zone, none for this one",
			[][]pod{{ready(1).forZones("zone-b"), ready(2).forZones("zone-c")}},
			"1 2", "drop",
		}, {
			"only ready endpoints need hints",
			[][]pod{{ready(1).forZones("zone-a"), ready(2).forZones("zone-b"), starting(3), draining(4)}},
			"1", "drop",
		}, {
			"a hint of an endpoint that is not ready names no zone",
			[][]pod{{ready(1).forZones("zone-b"), draining(2).forZones("zone-a")}},
			"1", "drop",
		}, {
			"draining endpoints are used whatever their hints",
			[][]pod{{draining(1).forZones("zone-a").forNodes("here"), draining(2).forZones("zone-b")}},
			"1 2", "drop",
		}, {
			"node before zone",
			[][]pod{{
				ready(1).forNodes("here").forZones("zone-b"),
				ready(2).forNodes("there").forZones("zone-a"),
				ready(3).forNodes("there", "here").forZones("zone-a"),
			}},
			"1 3", "drop",
		}, {
			"node hints for other nodes: zone",
			[][]pod{{
				ready(1).forNodes("there").forZones("zone-a"),
				ready(2).forNodes("there").forZones("zone-b"),
			}},
			"1", "drop",
		}, {
			"node hints not on every endpoint: zone",
			[][]pod{{
				ready(1).forZones("zone-a"),
				ready(2).forNodes("here").forZones("zone-b"),
			}},
			"1", "drop",
		}, {
			"node and zone hints, neither on every endpoint",
			[][]pod{{ready(1).forZones("zone-a"), ready(2).forNodes("here")}},
			"1 2", "drop",
		}, {
			"the endpoint's own zone and node mean nothing",
			[][]pod{{ready(1).here(), ready(2)}},
			"1 2", "1",
		}, {
			"local ignores hints",
			[][]pod{{ready(1).here().forZones("zone-b"), ready(2).forZones("zone-a")}},
			"2", "1",
		}, {
			"local ignores node hints",
			[][]pod{{ready(1).here().forNodes("there"), ready(2).forNodes("here")}},
			"2", "1",
		},
	})
}

func TestUnknownNode(t *testing.T) {
	runSelectCases(t, &model.LocalNode{}, []selectCase{
		{
			"no name: nothing is local",
			[][]pod{{ready(1).on(""), ready(2).here()}},
			"1 2", "drop",
		}, {
			"no name and zone: no hint applies",
			[][]pod{{
				ready(1).forNodes("").forZones(""),
				ready(2).forNodes("there").forZones("zone-b"),
			}},
			"1 2", "drop",
		},
	})
	runSelectCases(t, &model.LocalNode{Name: "here"}, []selectCase{
		{
			"no zone: node hints still apply",
			[][]pod{{ready(1).forNodes("here"), ready(2).forNodes("there")}},
			"1", "drop",
		},
	})
}

// TestJoin has the same pods behind several ports, of which each Service port
// gets its own.
func TestJoin(t *testing.T) {
	for _, family := range model.Families {
		other := model.IPv4
		if family == model.IPv4 {
			other = model.IPv6
		}
		named := httpSlice(family, ready(1))
		named.Ports = []model.SlicePort{
			{Name: "http", Protocol: model.TCP, Port: targetPort},
			{Name: "http", Protocol: model.UDP, Port: 1},
			{Name: "dns", Protocol: model.UDP, Port: 2},
			{Name: "", Protocol: model.TCP, Port: 3},
		}
		moved := httpSlice(family, ready(2), ready(1))
		moved.Ports[0].Port = 4
		list := []*model.Slice{named, moved, httpSlice(other, ready(3))}

		for _, c := range []struct {
			name     string
			protocol model.Protocol
			want     string
		}{
			{"http", model.TCP, "1:4 1 2:4"},
			{"http", model.UDP, "1:1"},
			{"dns", model.UDP, "1:2"},
			{"dns", model.TCP, "reject"},
			{"", model.TCP, "1:3"},
			{"8080", model.TCP, "reject"},
			{"http", model.SCTP, "reject"},
		} {
			port := model.ServicePort{Name: c.name, Protocol: c.protocol, Port: targetPort}
			if got := show(Select(&model.Service{}, port, family, list, here).cluster()); got != c.want {
				t.Errorf("%v, port %q %v: cluster set = %s, want %s", family, c.name, c.protocol, got, c.want)
			}
		}
		if got := show(Select(&model.Service{}, httpPort, other, list, here).cluster()); got != "3" {
			t.Errorf("%v: cluster set = %s, want 3", other, got)
		}
	}
}

func TestBackendState(t *testing.T) {
	list := []*model.Slice{httpSlice(model.IPv4, draining(2), draining(1).here())}
	sets := Select(&model.Service{}, httpPort, model.IPv4, list, here)
	local := Backend{
		AddrPort: netip.MustParseAddrPort("10.0.0.1:8080"),
		Serving:  true, Terminating: true, NodeName: "here", OnNode: true, Weight: 1,
		InCluster: true, InLocal: true,
	}
	remote := Backend{
		AddrPort: netip.MustParseAddrPort("10.0.0.2:8080"),
		Serving:  true, Terminating: true, NodeName: "there", Weight: 1,
		InCluster: true,
	}
	if want := []Backend{local, remote}; sets.Cluster != Backends || sets.Local != Backends || !slices.Equal(sets.Backends, want) {
		t.Errorf("sets = %+v, want backends %+v", sets, want)
	}
}
