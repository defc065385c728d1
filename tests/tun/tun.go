// Package tun connects two TUN devices, whose packets take a while on their way.
package tun

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// queued is how many packets may be on their way in one direction. As on a link, those that are
// more wait until the others have arrived.
const queued = 1000

// New makes a TUN device in the network namespace of this thread, and sets it up. It is gone when its
// file is closed.
func New(name string) (*os.File, error) {
	link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, err
	}
	device := link.Fds[0]
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// Connect takes what is sent at each of two TUN devices to the other one, each packet after delay,
// until stop is called, which closes them.
func Connect(ends [2]*os.File, delay time.Duration) (stop func()) {
	var ended atomic.Bool
	var carriers sync.WaitGroup
	for i := range ends {
		carriers.Go(func() { carry(int(ends[i].Fd()), int(ends[1-i].Fd()), delay, &ended) })
	}
	return func() {
		ended.Store(true)
		carriers.Wait()
		for _, device := range ends {
			device.Close()
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
