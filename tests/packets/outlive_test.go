package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// conversation is what a client keeps on sending, and who has answered first.
type conversation struct {
	network string
	socket  *lab.Socket
	server  string
}

// openFlows begins a flow of each protocol and family from a client to addresses of a network.
func openFlows(t *testing.T, client *lab.Namespace, to ...func(network string) netip.AddrPort) (all []*conversation) {
	t.Helper()
	for _, network := range networks {
		for _, address := range to {
			s, hello := connect(t, client, network, address(network))
			all = append(all, &conversation{network, s, hello.name})
		}
	}
	return all
}

func (f *conversation) udp() bool { return strings.HasPrefix(f.network, "udp") }

// stays checks that a flow goes on to the server that it has begun with.
func (f *conversation) stays(t *testing.T, what string) {
	t.Helper()
	if !f.udp() {
		if err := echo(f.socket, what); err != nil {
			t.Errorf("%s: a flow of %s: %v", what, f.network, err)
		}
		return
	}
	if hello := mustTalk(t, f.socket); hello.name != f.server {
		t.Errorf("%s: a flow of %s went from %s to %s", what, f.network, f.server, hello.name)
	}
}

// by returns the address of the i-th Service's frontends of a kind.
func by(name string, i int) func(network string) netip.AddrPort {
	for _, f := range frontends {
		if f.name == name {
			return func(network string) netip.AddrPort {
				return netip.AddrPortFrom(f.address(i).of(network), uint16(f.port(i)))
			}
		}
	}
	panic("no frontend is a " + name)
}

// TestStay: flows stay with an endpoint that serves, in its sets or not: one that terminates beside
// others that are ready, or that topology hints or policies leave out, also with a new agent, and when
// the frontend goes. New ones go elsewhere. A UDP flow moves with its next datagram when the endpoint
// serves no more, while TCP goes on.
func TestStay(t *testing.T) {
	t.Parallel()
	client := func(c *cluster) *lab.Namespace { return c.client }
	for name, v := range map[string]struct {
		from  func(*cluster) *lab.Namespace
		flags []string
	}{
		"tc":   {client, nil},
		"XDP":  {client, []string{"--xdp", "generic"}},
		"pods": {func(c *cluster) *lab.Namespace { return c.podOf(local) }, podFlags},
		"DSR":  {client, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "tc")
			c := newCluster(t, false)
			quic, more := c.service(1, "quic", "", []endpoint{remote}), []string(nil)
			if name == "DSR" {
				c.serveDSR(t, quic)
				more = c.nodeManifests()
			} else {
				c.serve(t, quic, v.flags...)
			}
			c.checkStay(t, v.from(c), more)
		})
	}
}

// checkStay changes Service 1 below flows of a client that have gone to the endpoint remote. more is
// in all manifests.
func (c *cluster) checkStay(t *testing.T, client *lab.Namespace, more []string) {
	t.Helper()
	flows := openFlows(t, client, by("NodePort", 1), by("external IP", 1))
	apply := func(manifests []string) {
		t.Helper()
		for _, a := range c.agents {
			a.apply(append(manifests, more...)...)
		}
	}
	quic := func(fields string, endpoints ...endpoint) []string { return c.service(1, "quic", fields, endpoints) }
	stay := func(what string) {
		t.Helper()
		for _, f := range flows {
			f.stays(t, what)
		}
	}
	elsewhere := func(what string) {
		t.Helper()
		stay(what)
		for _, network := range networks {
			got, err := ask(client, network, by("NodePort", 1)(network), what)
			if err != nil || got.name != otherLocal.server() {
				t.Errorf("%s: a new flow of %s reaches %v, %v, want %s", what, network, got.greeting, err, otherLocal.server())
			}
		}
	}
	terminating, gone, there, here := remote, remote, remote, otherLocal
	terminating.terminating, gone.gone, there.hint, here.hint = true, true, 2, 1

	apply(quic("", terminating, otherLocal))
	elsewhere("terminating")
	c.agents[0].Signal(unix.SIGKILL)
	_ = c.agents[0].Wait() // killed
	c.agents[0].start()
	elsewhere("terminating, with a new agent")
	apply(quic("externalTrafficPolicy: Local,", terminating, otherLocal))
	elsewhere("terminating, with the policy Local")
	apply(quic("", remote, otherLocal))
	stay("ready again")
	apply(quic("", there, here))
	elsewhere("with hints to other nodes")
	apply(quic("", remote, otherLocal))
	stay("without hints again")
	addr := clusterIP(1)
	apply(append(quic("", terminating, otherLocal)[1:], lab.Service("quic", fmt.Sprintf(
		"{clusterIPs: [%q, %q], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}", addr[0], addr[1]))))
	stay("terminating, of a Service whose frontends are gone")
	apply(quic("", terminating, otherLocal))
	elsewhere("terminating, of a Service that has its frontends again")
	apply(quic("", gone, otherLocal))
	for _, f := range flows {
		if !f.udp() {
			f.stays(t, "serves no more")
		} else if hello := mustTalk(t, f.socket); hello.name != otherLocal.server() {
			t.Errorf("serves no more: a flow of %s reaches %s, want %s", f.network, hello.name, otherLocal.server())
		}
	}
}

// TestHandedOver: UDP flows follow an address or a NodePort that another Service gets, while their
// endpoint goes on to serve the former one, and go back with it. TCP stays, and so does a flow of UDP
// by an address that stays.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]struct {
		from  func(*cluster) *lab.Namespace
		flags []string
	}{
		"tc":   {func(c *cluster) *lab.Namespace { return c.client }, nil},
		"XDP":  {func(c *cluster) *lab.Namespace { return c.client }, []string{"--xdp", "generic"}},
		"pods": {func(c *cluster) *lab.Namespace { return c.podOf(local) }, podFlags},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "tc")
			// Service 2 has the frontends of Service 1, or they are the other way round.
			services := func(c *cluster, blue, green endpoint) []string {
				return append(c.service(1, "blue", "", []endpoint{blue}), c.service(2, "green", "", []endpoint{green})...)
			}
			swapped := func(c *cluster, blue, green endpoint) []string {
				return append(c.service(2, "blue", "", []endpoint{blue}), c.service(1, "green", "", []endpoint{green})...)
			}
			c, a := serveCluster(t, func(c *cluster) []string { return services(c, remote, otherLocal) }, v.flags...)
			client := v.from(c)
			flows := openFlows(t, client, by("NodePort", 1), by("external IP", 1), by("load balancer", 1))
			for i, manifests := range [][]string{swapped(c, remote, otherLocal), services(c, remote, otherLocal)} {
				a.apply(manifests...)
				want := []endpoint{otherLocal, remote}[i].server()
				for _, f := range flows {
					if !f.udp() {
						f.stays(t, "handed over")
						continue
					}
					lab.Eventually(t, "a flow of "+f.network+" follows to "+want, func() bool {
						return mustTalk(t, f.socket).name == want
					})
					f.server = want
				}
			}
			keeps := openFlows(t, client, by("load balancer", 1))
			none := strings.ReplaceAll(services(c, remote, otherLocal)[0], externalIP(1)[0].String(), "198.51.100.77")
			a.apply(append([]string{none}, services(c, remote, otherLocal)[1:]...)...)
			for _, f := range append(keeps, flows...) {
				f.stays(t, "an address is gone")
			}
		})
	}
}
