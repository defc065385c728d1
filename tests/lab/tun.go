package lab

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddTUN connects two namespaces by devices of one name whose packets have no Ethernet header, until
// the test ends. A packet is delay on its way.
func (n *Namespace) AddTUN(name string, peer *Namespace, delay time.Duration) {
	n.t.Helper()
	var ends [2]int
	for i, at := range []*Namespace{n, peer} {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
		at.AddLink(tun)
		n.t.Cleanup(func() { tun.Fds[0].Close() })
		ends[i] = int(tun.Fds[0].Fd())
	}
	var ended atomic.Bool
	var carriers sync.WaitGroup
	for i := range ends {
		carriers.Go(func() { carry(ends[i], ends[1-i], delay, &ended) })
	}
	n.t.Cleanup(func() {
		ended.Store(true)
		carriers.Wait()
	})
}

// carry takes packets from one TUN device to another until it has ended.
func carry(from, to int, delay time.Duration, ended *atomic.Bool) {
	type arrival struct {
		packet []byte
		due    time.Time
	}
	onTheWay := make(chan arrival, 1000)
	var writer sync.WaitGroup
	writer.Go(func() {
		for a := range onTheWay {
			time.Sleep(time.Until(a.due))
			_, _ = unix.Write(to, a.packet) // a device that is full drops it
		}
	})
	packet := make([]byte, 1<<16)
	for !ended.Load() {
		ready := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 20); err != nil || n == 0 {
			continue
		}
		if size, err := unix.Read(from, packet); err == nil {
			onTheWay <- arrival{append([]byte(nil), packet[:size]...), time.Now().Add(delay)}
		}
	}
	close(onTheWay)
	writer.Wait()
}
