package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"time"
)

// datagramScheme begins the targets that are asked by UDP.
const datagramScheme = "udp://"

// oneDatagram asks by one datagram from a new socket. There is no second one, so a
// datagram that gets lost counts.
func (r *runner) oneDatagram(target string) {
	got, err := askDatagram(strings.TrimPrefix(target, datagramScheme))
	if err != nil {
		r.count.lost(target, err)
		return
	}
	r.count.answeredDatagram(got)
}

func askDatagram(address string) (answer, error) {
	var got answer
	conn, err := net.Dial("udp", address)
	if err != nil {
		return got, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return got, err
	}
	if _, err := conn.Write([]byte("who")); err != nil {
		return got, err
	}
	return got, json.NewDecoder(conn).Decode(&got)
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
