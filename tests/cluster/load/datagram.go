package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// datagramScheme begins the targets that are asked by UDP.
const datagramScheme = "udp://"

// resend is how long a datagram may stay without an answer before it is sent again, as long as
// TCP waits with a SYN.
const resend = time.Second

// oneDatagram asks by datagrams from a new socket until one is answered.
func (r *runner) oneDatagram(target string) {
	got, sent, err := askDatagram(strings.TrimPrefix(target, datagramScheme))
	if err != nil {
		r.count.lost(target, err)
		return
	}
	r.count.answeredDatagram(got, sent > 1)
}

func askDatagram(address string) (got answer, sent int, err error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return got, 0, err
	}
	defer conn.Close()
	for begin := time.Now(); time.Since(begin) < timeout; {
		if err := conn.SetDeadline(time.Now().Add(resend)); err != nil {
			return got, sent, err
		}
		if _, err := conn.Write([]byte("who")); err != nil {
			return got, sent, err
		}
		sent++
		if err = json.NewDecoder(conn).Decode(&got); !errors.Is(err, os.ErrDeadlineExceeded) {
			return got, sent, err
		}
	}
	return got, sent, fmt.Errorf("no answer to %d datagrams", sent)
}

// serveDatagrams answers each datagram until ctx ends.
func serveDatagrams(ctx context.Context, address, host string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			continue // of an earlier reply that nobody took
		}
		client, _, _ := net.SplitHostPort(from.String())
		reply, err := json.Marshal(answer{Host: host, Client: client})
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(reply, from) // the client sees it
	}
	return nil
}
