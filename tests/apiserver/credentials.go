package apiserver

import (
	"errors"
	"net"
	"net/netip"

	"github.com/beeline-lb/beeline/tests/credentials"
)

// writeCredentials writes to dir ca.crt, and a certificate and key each of the
// server, also behind a proxy at 127.0.0.1, and of an administrator.
func writeCredentials(dir string, server netip.Addr) error {
	ca, err := credentials.NewAuthority(dir)
	if err != nil {
		return err
	}
	return errors.Join(
		ca.Issue("server", credentials.Subject{Name: "kube-apiserver", IPs: []net.IP{server.AsSlice(), net.IPv4(127, 0, 0, 1)}}),
		ca.Issue("admin", credentials.Subject{Name: "admin", Groups: []string{"system:masters"}}))
}
