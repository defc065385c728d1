package packets_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// The Services of TestSecondEndpoint, all of the same endpoints but secondAlone, which has one. None is
// ejected.
const (
	secondRandom = iota + 1
	secondSticky // by session affinity
	secondHash   // by the client's address
	secondLeast  // by active connections
	secondAlone
	secondOff // without outlier detection
)

var secondEndpoints = []endpoint{local, remote}

// annotated returns manifests with an annotation at Services.
func annotated(manifests []string, name, value string) []string {
	for i, m := range manifests {
		if strings.Contains(m, "kind: Service") {
			manifests[i] = strings.Replace(m, "namespace: default", fmt.Sprintf("namespace: default, annotations: {service.beeline.io/%s: %q}", name, value), 1)
		}
	}
	return manifests
}

func (c *cluster) secondServices() []string {
	return slices.Concat(
		c.service(secondRandom, "random", "", secondEndpoints),
		c.service(secondSticky, "sticky", "sessionAffinity: ClientIP,", secondEndpoints),
		annotated(c.service(secondHash, "hash", "", secondEndpoints), "algorithm", "sh"),
		annotated(c.service(secondLeast, "least", "", secondEndpoints), "algorithm", "lc"),
		c.service(secondAlone, "alone", "", secondEndpoints[:1]),
		annotated(c.service(secondOff, "off", "", secondEndpoints), "outlier-detection", "off"))
}

// TestSecondEndpoint: a client whose SYN an endpoint refuses, or does not answer, reaches another one with
// its next SYN. It sees a reset when the second refuses as well, when there is no other, where outlier
// detection is not asked for, and of a connection that is established.
func TestSecondEndpoint(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for name, flags := range map[string][]string{
		"tc":         nil,
		"XDP":        {"--xdp", "generic"},
		"no forward": {"--masquerade-all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "tc")
			c, a := serveCluster(t, (*cluster).secondServices, append(flags, "--outlier-detection", "failures=255,time=1h",
				"--allowed-annotations", "service.beeline.io/outlier-detection,service.beeline.io/algorithm")...)
			for _, network := range networks[:2] {
				s := &secondTest{t, c, a.node, network}
				for how := range deaf {
					s.goesOn(secondSticky, how)
					s.goesOn(secondHash, how)
				}
				s.counts()
				s.isTold()
				s.isReset()
			}
		})
	}
}

// secondTest asks the Services of TestSecondEndpoint from outside.
type secondTest struct {
	*testing.T
	c       *cluster
	node    *node
	network string
}

func (s *secondTest) deaf(e endpoint, how string) { s.c.setDeaf(s.T, e, s.network, deaf[how]) }

// dial makes a connection and returns who has answered, and how many resets were held back meanwhile.
func (s *secondTest) dial(service int) (endpoint, uint64, error) {
	s.Helper()
	before := eventCount(s.T, s.node, "reset_held")
	name, err := dial(s.Context(), s.c.client, s.network, nodePort(s.network, service))
	i := max(0, slices.IndexFunc(secondEndpoints, func(e endpoint) bool { return e.server() == name }))
	return secondEndpoints[i], eventCount(s.T, s.node, "reset_held") - before, err
}

// goesOn wants a client that has an endpoint to reach the other one while that does not serve. With
// session affinity it stays there.
func (s *secondTest) goesOn(service int, how string) {
	s.Helper()
	bad, _, err := s.dial(service)
	if err != nil {
		s.Fatal(err)
	}
	s.deaf(bad, how)
	for round := range 2 {
		want := uint64(1)
		if how == "is silent" || round > 0 && service == secondSticky {
			want = 0
		}
		if got, held, err := s.dial(service); err != nil || got == bad || held != want {
			s.Errorf("Service %d, %s: while %s %s, %s answers, %v, after %d resets that were held back, want %d", service, s.network, bad.server(), how, got.server(), err, held, want)
		}
	}
	s.deaf(bad, "")
}

// counts wants all of many connections to be answered, and none to be active in the end.
func (s *secondTest) counts() {
	s.Helper()
	s.deaf(local, "refuses")
	for _, service := range []int{secondRandom, secondLeast} {
		before := eventCount(s.T, s.node, "reset_held")
		d := startDials(s.T, 16, s.c.client, s.network, nodePort(s.network, service), func() bool { return false })
		d.made.Wait()
		if n := d.failed.Load(); n > 0 || eventCount(s.T, s.node, "reset_held") == before {
			s.Errorf("Service %d, %s: %d of 16 connections fail, none was held back: %t", service, s.network, n, eventCount(s.T, s.node, "reset_held") == before)
		}
	}
	s.deaf(local, "")
	addrs := []netip.Addr{s.c.addrsOf(local).of(s.network), s.c.addrsOf(remote).of(s.network)}
	lab.Eventually(s.T, "no connection is active", func() bool {
		return slices.Max(withMaps(s.T, s.node, func(m *bpfmap.Maps) []int { return activeFlows(s.T, m, model.TCP, addrs) })) == 0
	})
}

// isTold wants the client to be told that nobody serves.
func (s *secondTest) isTold() {
	s.Helper()
	s.deaf(local, "refuses")
	if _, held, err := s.dial(secondAlone); !errors.Is(err, unix.ECONNREFUSED) || held != 0 {
		s.Errorf("%s, of one endpoint that refuses: %v after %d resets, want it refused at once", s.network, err, held)
	}
	var err error
	for i := 0; i < 40 && err == nil; i++ {
		var held uint64
		if _, held, err = s.dial(secondOff); held != 0 {
			s.Errorf("%s, without outlier detection: %d resets are held back", s.network, held)
		}
	}
	s.deaf(remote, "refuses")
	if !errors.Is(err, unix.ECONNREFUSED) {
		s.Errorf("%s, without outlier detection: %v, want it refused", s.network, err)
	}
	if _, held, err := s.dial(secondRandom); !errors.Is(err, unix.ECONNREFUSED) || held != 1 {
		s.Errorf("%s, of two endpoints that refuse: %v after %d resets, want it refused after one", s.network, err, held)
	}
	s.deaf(local, "")
	s.deaf(remote, "")
}

// isReset wants the reset of an established connection to reach the client.
func (s *secondTest) isReset() {
	s.Helper()
	err := s.c.client.Thread(func() error {
		conn, err := net.Dial(s.network, nodePort(s.network, secondAlone).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
			return err
		}
		buf := make([]byte, 256)
		if _, err := conn.Read(buf); err != nil {
			return err
		}
		s.c.setDeafTo(s.T, local, s.network, "tcp flags & (syn|ack) == ack", deaf["refuses"])
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err = conn.Read(buf)
		return err
	})
	s.deaf(local, "")
	if !errors.Is(err, unix.ECONNRESET) {
		s.Errorf("%s: the reset of an established connection: %v, want it to be seen", s.network, err)
	}
}
