package datapath

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Tell tells those who listen to events, if there are any, what the agent has found.
func (d *Datapath) Tell(found bpf.SockBlFound) error {
	if atomic.LoadUint64(&d.maps.Entries.Monitor.Listening) == 0 {
		return nil
	}
	d.mu.Lock()
	program, err := d.deviceProgram(bpf.TcProgBlTell)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	data, err := binary.Append(nil, binary.NativeEndian, found)
	if err != nil {
		return err
	}
	if _, err := program.Run(&ebpf.RunOptions{Data: data}); err != nil {
		return fmt.Errorf("tell an event: %w", err)
	}
	return nil
}
