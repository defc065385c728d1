package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// datagramScheme begins the targets that are asked by UDP.
const datagramScheme = "udp://"

// resend is how long a datagram may stay without an answer before it is sent again, as long as
// TCP waits with a SYN.
const resend = time.Second

// largest is the size of the largest datagram.
const largest = 1 << 16

// oneDatagram asks by datagrams of a size, or as small as can be, from a new socket until one
// is answered.
func (r *runner) oneDatagram(target string, size int) {
	conn, err := dialDatagram(target)
	if err != nil {
		r.count.lost(target, err)
		return
	}
	defer conn.Close()
	if err := r.askDatagram(conn, size); err != nil {
		r.count.lost(target, err)
	}
}

// keepDatagrams keeps one socket at a time until ctx ends, and asks again and again. Where the
// socket has led to may change.
func (r *runner) keepDatagrams(ctx context.Context, target string) {
	for ctx.Err() == nil {
		err := r.useSocket(ctx, target)
		if err != nil {
			r.count.lost(target, err)
			time.Sleep(pause)
		}
	}
}

// useSocket asks from one socket until ctx ends or its server does. A socket that was answered
// may be destroyed once its endpoint is gone, or refused: until the endpoint is known to serve
// no more, a server that has just ended is still asked.
func (r *runner) useSocket(ctx context.Context, target string) error {
	conn, err := dialDatagram(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	for first := true; ctx.Err() == nil; first = false {
		err := r.askDatagram(conn, 0)
		if !first && serverEnded(err) {
			return nil
		}
		if err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

// serverEnded reports whether the error of a socket tells that its server has ended.
func serverEnded(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EDESTADDRREQ)
}

func dialDatagram(target string) (net.Conn, error) {
	return net.Dial("udp", strings.TrimPrefix(target, datagramScheme))
}

// askDatagram makes one request of a size and counts its answer, which is as large.
func (r *runner) askDatagram(conn net.Conn, size int) error {
	begin := time.Now()
	request := strconv.FormatInt(begin.UnixNano(), 10)
	datagram := pad([]byte(request), size)
	for sent := 1; time.Since(begin) < loadstats.Timeout; sent++ {
		if err := conn.SetDeadline(time.Now().Add(resend)); err != nil {
			return err
		}
		_, err := conn.Write(datagram)
		var got answer
		if err == nil {
			got, err = readAnswer(conn, request)
		}
		if err == nil {
			r.count.answeredDatagram(got, sent > 1)
		}
		// By EMSGSIZE a socket tells that it has learnt a smaller MTU of the path.
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.EMSGSIZE) {
			return err
		}
	}
	return fmt.Errorf("no answer to %d bytes", len(datagram))
}

// pad adds spaces up to a size.
func pad(b []byte, size int) []byte {
	return append(b, bytes.Repeat([]byte{' '}, max(0, size-len(b)))...)
}

// readAnswer waits for the answer to a request, not to an earlier one that was sent twice.
func readAnswer(conn net.Conn, request string) (got answer, err error) {
	buf := make([]byte, largest)
	for err == nil && got.Request != request {
		var n int
		if n, err = conn.Read(buf); err == nil {
			err = json.Unmarshal(buf[:n], &got)
		}
	}
	return got, err
}

// serveDatagrams answers each datagram until ctx ends, by one that is as large or larger.
func serveDatagrams(ctx context.Context, address, host string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	buf := make([]byte, largest)
	for ctx.Err() == nil {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			continue // of an earlier reply that nobody took
		}
		client, _, _ := net.SplitHostPort(from.String())
		reply, err := json.Marshal(answer{Host: host, Client: client, Request: string(bytes.TrimRight(buf[:n], " "))})
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(pad(reply, n), from) // the client sees it
	}
	return nil
}
