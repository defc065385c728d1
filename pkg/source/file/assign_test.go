package file

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// manifest of a Service with lines of its spec.
func serviceYAML(name string, spec ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  %s\n", name, strings.Join(spec, "\n  "))
}

// TestAssignIgnoresFileNames puts the same Services into files of other names
// and order: as long as their choices do not meet, each gets the same.
func TestAssignIgnoresFileNames(t *testing.T) {
	got := map[string]string{}
	for _, order := range [][]string{{"a", "b", "c", "d"}, {"d", "c", "b", "a"}} {
		dir := t.TempDir()
		for i, name := range order {
			write(t, dir, fmt.Sprintf("%d.yaml", i), serviceYAML(name, "type: NodePort", "ports: [{port: 80}]"))
		}
		s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16")})
		scan(t, s)
		for name, svc := range sink.services() {
			is := fmt.Sprint(svc.ClusterIPs, svc.Ports)
			if was, ok := got[name]; ok && was != is {
				t.Errorf("%s has %s, and %s in other files", name, was, is)
			}
			got[name] = is
		}
	}
	if len(got) != 4 {
		t.Fatalf("%d Services, want 4", len(got))
	}
}

// TestOneNodePortForBothProtocols checks that DNS over UDP and TCP is reached at
// one number.
func TestOneNodePortForBothProtocols(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "dns.yaml", serviceYAML("dns", "type: NodePort",
		"ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53}, {name: w, port: 80}]"))
	s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16")})
	scan(t, s)
	p := sink.services()["default/dns"].Ports
	if p[0].NodePort != p[1].NodePort || p[0].NodePort == 0 || p[2].NodePort == p[0].NodePort {
		t.Fatalf("node ports of %v: want 53 to have one and 80 another", p)
	}
}

// TestOwnNodePortsDiffer: ports of one Service that clients tell apart get a number each, and so does its health
// check, also where few are left.
func TestOwnNodePortsDiffer(t *testing.T) {
	for i := range 20 {
		dir := t.TempDir()
		write(t, dir, "a.yaml", serviceYAML(fmt.Sprintf("s-%d", i), "type: LoadBalancer", "externalTrafficPolicy: Local",
			"ports: [{name: x, port: 80}, {name: y, port: 81}]"))
		s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16"), NodePortMin: 4000, NodePortMax: 4002})
		scan(t, s)
		for name, svc := range sink.services() {
			x, y, health := svc.Ports[0].NodePort, svc.Ports[1].NodePort, svc.HealthCheckPort
			if x*y*health == 0 || x == y || y == health || x == health {
				t.Errorf("%s has node ports %d and %d, health check %d", name, x, y, health)
			}
		}
		if errs := s.Errors(); len(errs) > 0 || len(sink.services()) == 0 {
			t.Errorf("%d Services, errors %v", len(sink.services()), errs)
		}
	}
}

// TestFullNodePorts checks that a range without a free node port rejects the
// Service that needs one, and only that.
func TestFullNodePorts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", serviceYAML("a", "type: NodePort", "ports: [{name: x, port: 80}, {name: y, port: 81}]"))
	write(t, dir, "b.yaml", serviceYAML("b", "type: NodePort", "ports: [{port: 80}]"))
	write(t, dir, "c.yaml", serviceYAML("c", "ports: [{port: 80}]"))
	s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16"), NodePortMin: 4000, NodePortMax: 4001})
	scan(t, s)
	errs := s.Errors()
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "b.yaml: document 1: line 6: spec.ports: ") {
		t.Errorf("errors %v, want one of b.yaml", errs)
	}
	if got := sink.services(); len(got) != 2 || got["default/b"] != nil {
		t.Errorf("Services %v, want a and c", got)
	}
}

// TestCopiedFile puts a copy beside a large file: the copy is rejected, in one
// message for the most part, and the file is served.
func TestCopiedFile(t *testing.T) {
	dir := t.TempDir()
	var docs []string
	for i := range 2000 {
		docs = append(docs, portYAML(fmt.Sprintf("s-%d", i), 80))
	}
	write(t, dir, "all.yaml", strings.Join(docs, "---\n"))
	s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16")})
	scan(t, s)
	write(t, dir, "all-backup.yaml", strings.Join(docs, "---\n"))
	scan(t, s)
	if n := len(sink.services()); n != 2000 {
		t.Errorf("%d Services, want 2000", n)
	}
	errs := s.Errors()
	if len(errs) != yamldoc.MaxFaults+1 || errs[yamldoc.MaxFaults].Error() != "all-backup.yaml: and 1980 more faults" {
		t.Errorf("%d errors, want %d and the last one to tell of the rest", len(errs), yamldoc.MaxFaults+1)
	}
	if want := "all-backup.yaml: document 2: line 9: metadata.name: Service default/s-1 is already in all.yaml: keep one of them"; errs[1].Error() != want {
		t.Errorf("error %q, want %q", errs[1], want)
	}
}

// TestAssignmentsHold changes a folder at random, with restarts between, and
// checks after each change that no two Services share an address or node port,
// that each one's stay while it exists, and that assigned ones lie in the range.
func TestAssignmentsHold(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	ranges := prefixes("10.96.0.0/26 fd96::/122")
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state"),
		ServiceRanges: ranges, NodePortMin: 30000, NodePortMax: 30063}
	s, sink := newSource(t, opts)
	before := map[string]*model.Service{}
	for step := range 150 {
		if step%10 == 9 {
			s, sink = newSource(t, opts)
		}
		randomFile(t, rng, opts.Dir)
		scan(t, s)
		now := sink.services()
		checkExclusive(t, now, ranges)
		for name, svc := range now {
			if was := before[name]; was != nil && (fmt.Sprint(was.ClusterIPs) != fmt.Sprint(svc.ClusterIPs) ||
				was.Ports[0].NodePort != svc.Ports[0].NodePort) {
				t.Fatalf("step %d: %s was at %v %v and is at %v %v", step, name,
					was.ClusterIPs, was.Ports, svc.ClusterIPs, svc.Ports)
			}
		}
		before = now
	}
	if len(before) < 10 {
		t.Fatalf("%d Services at the end: too few to tell anything", len(before))
	}
}

// randomFile writes one of 20 files with some of its own Services.
func randomFile(t *testing.T, rng *rand.Rand, dir string) {
	file := rng.IntN(20)
	var docs []string
	for i := range 3 {
		if rng.IntN(3) > 0 {
			docs = append(docs, serviceYAML(fmt.Sprintf("s-%d-%d", file, i),
				"type: NodePort", "ipFamilyPolicy: PreferDualStack", fmt.Sprintf("ports: [{port: 80, targetPort: %d}]", 1+rng.IntN(9))))
		}
	}
	if rng.IntN(5) == 0 {
		docs = append(docs, "broken: [")
	}
	write(t, dir, fmt.Sprintf("%d.yaml", file), strings.Join(docs, "---\n"))
}

func checkExclusive(t *testing.T, services map[string]*model.Service, ranges []netip.Prefix) {
	t.Helper()
	addrs, ports := map[netip.Addr]string{}, map[uint16]string{}
	for name, svc := range services {
		if len(svc.ClusterIPs) != 2 || svc.Ports[0].NodePort == 0 {
			t.Fatalf("%s has %v and %v, want both families and a node port", name, svc.ClusterIPs, svc.Ports)
		}
		for i, ip := range svc.ClusterIPs {
			if other, taken := addrs[ip]; taken || !ranges[i].Contains(ip) {
				t.Fatalf("%s has %s of %s, also held by %q", name, ip, ranges[i], other)
			}
			addrs[ip] = name
		}
		if other, taken := ports[svc.Ports[0].NodePort]; taken {
			t.Fatalf("%s and %s share node port %d", name, other, svc.Ports[0].NodePort)
		}
		ports[svc.Ports[0].NodePort] = name
	}
}
