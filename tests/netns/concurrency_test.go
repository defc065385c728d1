package netns_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// churn is a Service whose endpoints are replaced as a whole again and again. The
// addresses of its backends tell the Service and the generation.
type churn struct {
	name     string
	to       netip.AddrPort
	number   byte
	affinity uint32
	started  atomic.Uint32 // the newest generation that may be served
	done     atomic.Uint32 // the newest that is served for sure
}

// perGeneration is how many backends a generation has.
const perGeneration = 3

// backend returns the i-th backend of a generation, below 1<<20 of them.
func (c *churn) backend(generation uint32, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 100<<24|uint32(c.number)<<22|generation<<2|uint32(i))
	return netip.AddrFrom4(b)
}

// generation is the opposite of backend.
func (c *churn) generation(addr netip.Addr) (uint32, error) {
	b := addr.Unmap().As4()
	word := binary.BigEndian.Uint32(b[:])
	if word>>22 != 100<<2|uint32(c.number) {
		return 0, fmt.Errorf("%s leads to %s, a backend of another Service", c.name, addr)
	}
	return word >> 2 & (1<<20 - 1), nil
}

func (c *churn) service() *model.Service {
	return &model.Service{
		Name:            model.Name{Namespace: "default", Name: c.name},
		ClusterIPs:      []netip.Addr{c.to.Addr()},
		Ports:           []model.ServicePort{{Protocol: model.UDP, Port: c.to.Port()}},
		AffinitySeconds: c.affinity,
	}
}

func (c *churn) slice(generation uint32) *model.Slice {
	s := &model.Slice{
		Name:    model.Name{Namespace: "default", Name: c.name},
		Service: c.name,
		Family:  model.IPv4,
		Ports:   []model.SlicePort{{Protocol: model.UDP, Port: 53}},
	}
	for i := range perGeneration {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: c.backend(generation, i), Ready: true, Serving: true})
	}
	return s
}

// connect connects a UDP socket and compares the backend with what was served
// meanwhile.
func (c *churn) connect(fd int) error {
	oldest := c.done.Load()
	to := unix.SockaddrInet4{Addr: c.to.Addr().As4(), Port: int(c.to.Port())}
	if err := unix.Connect(fd, &to); err != nil {
		return fmt.Errorf("connect to %s: %w", c.name, err)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	newest := c.started.Load()
	got, err := c.generation(netip.AddrFrom4(peer.(*unix.SockaddrInet4).Addr))
	if err != nil {
		return err
	}
	if got < oldest || got > newest {
		return fmt.Errorf("%s leads to generation %d, while %d to %d were served", c.name, got, oldest, newest)
	}
	return nil
}

// client makes connections from a thread in the namespace until left is used up.
func client(n *lab.Namespace, services []*churn, left *atomic.Int64) error {
	return n.Thread(func() error {
		fd := -1
		defer func() { unix.Close(fd) }()
		for i := 0; left.Add(-1) >= 0; i++ {
			// One connection in 16 is made by a fresh socket, which the others use
			// again.
			if i%16 == 0 {
				unix.Close(fd)
				var err error
				if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
					return err
				}
			}
			if err := services[i%len(services)].connect(fd); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestReplacedEndpoints replaces the endpoints of two Services 1,000 times a
// second; no connect() meanwhile is refused, or meets a backend that had left
// before or one of the other Service.
func TestReplacedEndpoints(t *testing.T) {
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	services := []*churn{
		{name: "plain", to: ap("10.96.1.1:53"), number: 1},
		{name: "sticky", to: ap("10.96.1.2:53"), number: 2, affinity: 10800},
	}
	var first source.Update
	for _, c := range services {
		first.PutServices = append(first.PutServices, c.service())
		first.PutSlices = append(first.PutSlices, c.slice(0))
	}
	a.Update(first)
	showBackends(t, h, services[0].to)
	connects := int64(200_000)
	switch {
	case tier.Emulated():
		connects = 50_000 // the processor is emulated
	case tier.All(t):
		connects = 1_000_000
	}
	var left atomic.Int64
	left.Store(connects)
	start := time.Now()
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			if err := client(h.Namespace, services, &left); err != nil {
				left.Store(0)
				t.Error(err)
			}
		})
	}
	updates := replaceUntil(a, services, &left)
	clients.Wait()
	took := time.Since(start)
	t.Logf("%d connections, %.0f updates a second for %s", connects, float64(updates)/took.Seconds(), took.Round(time.Millisecond))
}

// showBackends takes away the program by which getpeername() shows the Service
// address to; then it tells which backend was chosen.
func showBackends(t *testing.T, h *lab.Host, to netip.AddrPort) {
	t.Helper()
	if err := os.Remove(filepath.Join(datapath.Dir(h.BPFFS), "link_bl_getpeername4")); err != nil {
		t.Fatal(err)
	}
	s := h.Socket("udp4")
	if err := s.Connect(to); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "getpeername() shows the backend", func() bool {
		peer, err := s.Peer()
		return err == nil && peer != to
	})
}

// replaceUntil replaces all endpoints every millisecond until left is used up,
// and returns how often.
func replaceUntil(a *lab.Agent, services []*churn, left *atomic.Int64) uint32 {
	next := time.Now()
	generation := uint32(0)
	for left.Load() > 0 {
		generation++
		var u source.Update
		for _, c := range services {
			u.PutSlices = append(u.PutSlices, c.slice(generation))
			c.started.Store(generation)
		}
		a.Update(u)
		for _, c := range services {
			c.done.Store(generation)
		}
		next = next.Add(time.Millisecond)
		time.Sleep(time.Until(next))
	}
	return generation
}
