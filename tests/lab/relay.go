package lab

import (
	"io"
	"net"
	"sync"
)

// Relay leads from the namespace to an address of the machine that is the same in both,
// such as 127.0.0.1:6443, until the test ends.
func (n *Namespace) Relay(address string) {
	n.t.Helper()
	var listener net.Listener
	n.must("listen on "+address, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	n.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go pass(conn, address)
		}
	}()
}

// pass copies data in both directions until one side closes.
func pass(from net.Conn, to string) {
	defer from.Close()
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, conn}, {conn, from}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // ends with the connection
			pair[0].Close()
		})
	}
	both.Wait()
}
