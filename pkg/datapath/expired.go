package datapath

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// TellExpired tells those who listen to events, if there are any, of a flow that was idle too long
// and is removed.
func (d *Datapath) TellExpired(removed *bpf.SockBlRemoved) error {
	if atomic.LoadUint64(&d.maps.Entries.Monitor.Listening) == 0 {
		return nil
	}
	d.mu.Lock()
	program, err := d.deviceProgram(bpf.TcProgBlExpired)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	data, err := binary.Append(nil, binary.NativeEndian, removed)
	if err != nil {
		return err
	}
	if _, err := program.Run(&ebpf.RunOptions{Data: data}); err != nil {
		return fmt.Errorf("tell of an expired flow: %w", err)
	}
	return nil
}
