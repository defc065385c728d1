package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
)

// server answers for one family of a Service, on one port of several addresses.
type server struct {
	*handler
	port      uint16
	http      *http.Server
	listeners map[netip.Addr]net.Listener
	failures  map[netip.Addr]string // the last one by address
	ended     chan<- ended
}

// ended is a listener that serves no more, for the kernel has given an error, as for want of memory.
type ended struct {
	*server
	addr     netip.Addr
	listener net.Listener
}

// forget has the address listened on anew.
func (e *ended) forget() {
	if e.listeners[e.addr] == e.listener {
		delete(e.listeners, e.addr)
	}
}

func (s *Services) newServer(name checkName, port uint16) *server {
	h := &handler{service: name.service, healthy: s.opts.Healthy}
	return &server{
		handler:   h,
		port:      port,
		http:      newHTTPServer(h, s.conns),
		listeners: make(map[netip.Addr]net.Listener),
		failures:  make(map[netip.Addr]string),
		ended:     s.ended,
	}
}

// close ends the server and its connections.
func (s *server) close() {
	// The only errors are those of closing listeners, which are gone all the same.
	_ = s.http.Close()
}

// keep closes the listeners on other addresses than these.
func (s *server) keep(addrs []netip.Addr) {
	for addr, l := range s.listeners {
		if !slices.Contains(addrs, addr) {
			_ = l.Close()
			delete(s.listeners, addr)
		}
	}
	for addr := range s.failures {
		if !slices.Contains(addrs, addr) {
			delete(s.failures, addr)
		}
	}
}

// open listens on those of the addresses that it does not listen on yet, and returns
// where that failed.
func (s *server) open(ctx context.Context, addrs []netip.Addr) map[netip.Addr]error {
	failed := make(map[netip.Addr]error)
	for _, addr := range addrs {
		if s.listeners[addr] != nil {
			continue
		}
		// With its family in the network's name, "::" is not for IPv4 too.
		network := "tcp4"
		if model.FamilyOf(addr) == model.IPv6 {
			network = "tcp6"
		}
		l, err := new(net.ListenConfig).Listen(ctx, network, netip.AddrPortFrom(addr, s.port).String())
		if err != nil {
			failed[addr] = err
			continue
		}
		delete(s.failures, addr)
		s.listeners[addr] = l
		go s.serve(ctx, addr, l)
	}
	return failed
}

// serve returns when the listener or the server is closed. An error that [http.Server.Serve] does not
// take for temporary closes the listener: the loop, which goes on until ctx ends, is told.
func (s *server) serve(ctx context.Context, addr netip.Addr, l net.Listener) {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return
	}
	klog.ErrorS(err, "Health check of a Service ended, listening again", "service", s.service, "address", l.Addr(), "in", retry)
	select {
	case s.ended <- ended{s, addr, l}:
	case <-ctx.Done():
	}
}
