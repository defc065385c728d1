// Package verify_test does damage to a node that a real agent has set up, each kind by itself, and
// looks whether it is found in words that say what it is; and that nothing is found on a healthy
// one. What a report of the node has is looked at, too.
package verify_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/verify"
	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// Services of each kind that the tables tell apart.
var manifests = []string{
	lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], ipFamilies: [IPv4, IPv6], type: NodePort,`+
		` ports: [{name: web, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP, nodePort: 30053}]}`),
	lab.Slice("web", "web:8080/TCP,dns:8080/UDP", lab.Backend4(1), lab.Backend4(2), lab.Backend4(3)),
	strings.Replace(lab.Service("ring", `{clusterIP: 10.96.0.2, sessionAffinity: ClientIP, ports: [{port: 80}]}`),
		"namespace: default", "namespace: default, annotations: {service.beeline.io/algorithm: maglev}", 1),
	lab.Slice("ring", "8080/TCP", lab.Backend4(4), lab.Backend4(5)),
	lab.Service("bounded", `{clusterIP: 10.96.0.3, type: LoadBalancer, externalTrafficPolicy: Local,`+
		` loadBalancerSourceRanges: [192.0.2.0/24], ports: [{port: 80, nodePort: 30081}]}`,
		`status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}`),
	lab.SliceOf("bounded", "8080/TCP", `{addresses: ["10.77.0.6"], nodeName: node-1}`),
	lab.Service("empty", `{clusterIP: 10.96.0.4, ports: [{port: 80}]}`),
}

// node is a host that an agent has set up.
type node struct {
	*lab.Host
	*lab.Standalone
	t     *testing.T
	flags []string
}

// newNode makes a host and has an agent serve the manifests.
func newNode(t *testing.T, flags ...string) *node {
	t.Helper()
	return serve(t, lab.NewHost(t), manifests, flags...)
}

// serve has an agent serve manifests on a host.
func serve(t *testing.T, h *lab.Host, manifests []string, flags ...string) *node {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		h.SetSysctl(family+"/conf/all/forwarding", "1")
	}
	n := &node{Host: h, Standalone: h.NewStandalone(manifests...), t: t, flags: flags}
	n.Standalone.Start(flags...)
	return n
}

// end ends the agent. What it has set up stays.
func (n *node) end() {
	n.t.Helper()
	n.Signal(unix.SIGTERM)
	if err := n.Wait(); err != nil {
		n.t.Fatal(err)
	}
}

// mend has an agent set up everything again.
func (n *node) mend() {
	n.t.Helper()
	n.Standalone.Start(n.flags...)
	n.end()
}

// check returns what is found on the node.
func (n *node) check(t *testing.T, settle time.Duration) *verify.Report {
	t.Helper()
	var report *verify.Report
	err := n.Host.Run(func() error {
		checker, err := verify.Open(verify.Options{BPFFS: n.BPFFS, Settle: settle})
		if err != nil {
			return err
		}
		defer checker.Close()
		report, err = checker.Check(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// text shows a report.
func text(r *verify.Report) string {
	var out strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&out, "%s %s %s: %s\n", f.Part, f.Kind, f.Service, f.What)
	}
	for _, u := range r.Unchecked {
		fmt.Fprintf(&out, "unchecked: %s: %s\n", u.Part, u.Reason)
	}
	return out.String()
}

// wantNothing fails for everything that is found.
func (n *node) wantNothing(t *testing.T, when string) {
	t.Helper()
	if r := n.check(t, 0); len(r.Findings)+len(r.Unchecked) > 0 {
		t.Errorf("%s:\n%s", when, text(r))
	}
}

// want fails unless a finding of the kind has the words, and says why and what to do.
func (n *node) want(t *testing.T, kind string, words ...string) {
	t.Helper()
	r := n.check(t, 0)
	for _, f := range r.Findings {
		if f.Kind != kind || f.Why == "" || f.Fix == "" {
			continue
		}
		missing := false
		for _, w := range words {
			missing = missing || !strings.Contains(f.What, w)
		}
		if !missing {
			return
		}
	}
	t.Errorf("no finding %s with the words %q:\n%s", kind, words, text(r))
}

// backends returns those of all Services.
func (n *node) backends(t *testing.T) []inspect.BackendEntry {
	t.Helper()
	d, err := inspect.Open(n.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	list, err := d.Backends()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// maps opens the maps for writing, which an agent must not have meanwhile.
func (n *node) maps() *bpfmap.Maps {
	n.t.Helper()
	m, err := bpfmap.Load(datapath.Dir(n.BPFFS), lab.Sizes)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return m
}

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
func prefix(s string) netip.Prefix     { return netip.MustParsePrefix(s) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// contains reports whether a text has all parts.
func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
