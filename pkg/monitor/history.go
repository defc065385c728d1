package monitor

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// remembered is how many connections a [History] remembers at least, the last ones.
const remembered = 1 << 16

// History remembers connections that have begun, to tell of one that ends what its last event
// does not say.
type History struct {
	recent, former map[connection]*beginning
}

// connection identifies a connection as its events do.
type connection struct {
	cookie              uint64
	client, dst         bpf.SockBlAddr
	clientPort, dstPort uint16
	proto               uint8
}

// beginning is what the first events of a connection have said.
type beginning struct {
	first      bpf.SockBlEvent
	backendSeq uint32 // the first of the backend; 0: not established
}

// Past is what is known of a connection that has ended.
type Past struct {
	First    *bpf.SockBlEvent // its first event
	Duration time.Duration
	// Counted says that Sent and Received, the client's bytes and the backend's, are known. They
	// are differences of TCP's sequence numbers: of more than 4 GiB the rest.
	Counted        bool
	Sent, Received uint32
}

// NewHistory returns a history without connections.
func NewHistory() *History { return &History{recent: make(map[connection]*beginning)} }

// Note remembers an event. It returns what is known of the connection when that is its end, and
// nil when nothing is.
func (h *History) Note(e *bpf.SockBlEvent) *Past {
	key := connectionOf(e)
	switch bpf.SockBlEventKind(e.Kind) {
	case bpf.SockBlEventKindBL_EVENT_CONNECTION:
		h.put(key, &beginning{first: *e})
	case bpf.SockBlEventKindBL_EVENT_ESTABLISHED:
		if b := h.find(key); b != nil {
			b.backendSeq = e.BackendSeq
		}
	case bpf.SockBlEventKindBL_EVENT_ENDED:
		b := h.find(key)
		delete(h.recent, key)
		delete(h.former, key)
		if b != nil {
			return b.end(e)
		}
	}
	return nil
}

func connectionOf(e *bpf.SockBlEvent) connection {
	if e.Cookie != 0 {
		return connection{cookie: e.Cookie, dst: e.Dst, dstPort: e.DstPort}
	}
	return connection{client: e.Client, dst: e.Dst, clientPort: e.ClientPort, dstPort: e.DstPort, proto: e.Proto}
}

// put adds a connection. The older half of those that are remembered is forgotten at once.
func (h *History) put(key connection, b *beginning) {
	if len(h.recent) >= remembered {
		h.former, h.recent = h.recent, make(map[connection]*beginning)
	}
	h.recent[key] = b
}

func (h *History) find(key connection) *beginning {
	if b := h.recent[key]; b != nil {
		return b
	}
	return h.former[key]
}

// end returns what is known when the last event has come.
func (b *beginning) end(last *bpf.SockBlEvent) *Past {
	p := &Past{First: &b.first, Duration: time.Duration(last.Time - b.first.Time)}
	if b.first.ClientSeq != 0 && b.backendSeq != 0 {
		p.Counted = true
		p.Sent, p.Received = last.ClientSeq-b.first.ClientSeq, last.BackendSeq-b.backendSeq
	}
	return p
}
