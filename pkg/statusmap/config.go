package statusmap

import (
	"fmt"
	"sync/atomic"
	"time"
)

// SetConfig notes the configuration that the agent has begun with. One that is too long for the
// room is not noted, which is an error.
func (t Table) SetConfig(text []byte) error {
	e := t.maps.Entries.Config
	e.Length = 0
	if len(text) > len(e.Text) {
		return fmt.Errorf("the configuration has %d bytes, more than the %d for which there is room", len(text), len(e.Text))
	}
	clear(e.Text[copy(e.Text[:], text):])
	e.Length = uint32(len(text))
	return nil
}

// Config returns what SetConfig has noted; empty when that is nothing.
func (t Table) Config() []byte {
	e := t.maps.Entries.Config
	return append([]byte{}, e.Text[:min(e.Length, uint32(len(e.Text)))]...)
}

// SetAsksConntrack notes whether the programs can ask which connections netfilter tracks, which was
// found out when they were loaded.
func (t Table) SetAsksConntrack(can bool) {
	e := t.maps.Entries.Config
	e.AsksConntrack = 0
	if can {
		e.AsksConntrack = 1
	}
}

// AsksConntrack returns what SetAsksConntrack has noted.
func (t Table) AsksConntrack() bool { return t.maps.Entries.Config.AsksConntrack != 0 }

// SetWaiting notes when the oldest change came in that is not in the tables; zero is none.
func (t Table) SetWaiting(since time.Time) {
	var ns uint64
	if !since.IsZero() {
		ns = uint64(since.UnixNano())
	}
	atomic.StoreUint64(&t.maps.Entries.Config.Waiting, ns)
}

// Waiting returns what SetWaiting has noted.
func (t Table) Waiting() (since time.Time) {
	if ns := atomic.LoadUint64(&t.maps.Entries.Config.Waiting); ns != 0 {
		since = time.Unix(0, int64(ns))
	}
	return since
}
