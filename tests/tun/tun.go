// Package tun connects two TUN devices, whose packets take a while on their way.
package tun

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// queued is how many packets may be on their way in one direction. As on a link, those that are
// more wait until the others have arrived.
const queued = 1000

// New makes a TUN device in the network namespace of this thread, sets it up, and returns its file
// descriptor.
func New(name string) (int, error) {
	link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
	if err := netlink.LinkAdd(link); err != nil {
		return -1, err
	}
	defer link.Fds[0].Close()
	fd, err := unix.FcntlInt(link.Fds[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, netlink.LinkSetUp(link)
}

// Connect takes what is sent at each of two TUN devices to the other one, each packet after delay,
// until stop is called, which closes them.
func Connect(ends [2]int, delay time.Duration) (stop func()) {
	var ended atomic.Bool
	var carriers sync.WaitGroup
	for i := range ends {
		carriers.Go(func() { carry(ends[i], ends[1-i], delay, &ended) })
	}
	return func() {
		ended.Store(true)
		carriers.Wait()
		for _, fd := range ends {
			unix.Close(fd)
		}
	}
}

func carry(from, to int, delay time.Duration, ended *atomic.Bool) {
	type arrival struct {
		packet []byte
		due    time.Time
	}
	onTheWay := make(chan arrival, queued)
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
