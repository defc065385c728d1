package health

import (
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// maxConns is how many connections a server of pages has at a time.
	maxConns = 512
	// maxCheckConns is how many all healthCheckNodePorts together have.
	maxCheckConns = 1024
)

// conns are the connections of servers that share a limit. When there are too many, one is closed:
// the oldest of the client that has the most on a port. So a client that asks now and then is
// answered, however many connections another one holds. Those of this node, such as the kubelet's,
// are closed only where there are no others.
type conns struct {
	most int

	mu   sync.Mutex
	open []held // oldest first
}

// held is an open connection.
type held struct {
	net.Conn
	by holder
}

// holder is whose connections are counted together.
type holder struct {
	model.Client
	port int
}

func holderOf(c net.Conn) holder {
	h := holder{Client: model.ClientOf(c.RemoteAddr(), c.LocalAddr())}
	if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
		h.port = tcp.Port
	}
	return h
}

// note follows a connection. It is an [http.Server]'s ConnState.
func (c *conns) note(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if extra := c.add(conn); extra != nil {
			_ = extra.Close() // its server notes that it is closed
		}
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	default:
	}
}

// add takes in a connection, and returns the one that has to go; nil: none.
func (c *conns) add(conn net.Conn) (extra net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, held{conn, holderOf(conn)})
	if len(c.open) <= c.most {
		return nil
	}
	i := c.extra()
	extra = c.open[i].Conn
	c.open = slices.Delete(c.open, i, i+1)
	return extra
}

// extra returns which connection has to go. The caller has the lock.
func (c *conns) extra() (found int) {
	counts := make(map[holder]int)
	for _, h := range c.open {
		counts[h.by]++
	}
	for i, h := range c.open {
		best := c.open[found].by
		switch {
		case h.by.Here && !best.Here:
		case !h.by.Here && best.Here, counts[h.by] > counts[best]:
			found = i
		}
	}
	return found
}

func (c *conns) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(h held) bool { return h.Conn == conn })
}
