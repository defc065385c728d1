// Package credentials issues the certificates of test clusters.
package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is how long a certificate is valid.
const lifetime = 24 * time.Hour

// Authority is a certificate authority that writes what it issues to a folder.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject says whom a certificate is for.
type Subject struct {
	// Name is the common name: a user's for a client.
	Name string
	// Groups are the user's groups.
	Groups []string
	// IPs and Names are what a server is reached by. With none of them the
	// certificate is a client's.
	IPs   []net.IP
	Names []string
}

// NewAuthority makes an authority and writes ca.crt and ca.key to dir.
func NewAuthority(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert = &x509.Certificate{
		Subject:               pkix.Name{CommonName: "beeline-test-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	return a, a.sign(a.cert, key, "ca")
}

// Issue writes a certificate and its key to <file>.crt and <file>.key.
func (a *Authority) Issue(file string, s Subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	usage := x509.ExtKeyUsageClientAuth
	if len(s.IPs)+len(s.Names) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: s.Name, Organization: s.Groups},
		IPAddresses: s.IPs,
		DNSNames:    s.Names,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, key, file)
}

// sign completes and signs a certificate for key and writes both.
func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey, file string) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		a.write(file+".crt", "CERTIFICATE", cert),
		a.write(file+".key", "EC PRIVATE KEY", private))
}

func (a *Authority) write(name, kind string, der []byte) error {
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(a.dir, name), block, 0o600)
}
