// Package certs has the edge's certificates: of a local authority that it makes, or the operator's own.
package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"aenv/native/internal/durable"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife is short: a new one costs nothing, and is made when a third of it is left.
	leafLife  = 90 * 24 * time.Hour
	renewLeft = leafLife / 3
	// skew is for clocks that are behind.
	skew = time.Hour

	// authorityFile holds key and certificate together, so that they are replaced together; certFile is a copy for clients.
	authorityFile = "authority.pem"
	certFile      = "ca.pem"
	// formerKeyFile held the key in builds that kept it apart from the certificate.
	formerKeyFile = "ca.key"
)

// allAddresses as a name constraint leaves out certificates of addresses, which names of domains do not concern.
var allAddresses = []*net.IPNet{
	{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
	{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
}

// authority signs servers' certificates of one domain, and can sign no others: whoever trusts it trusts it for that domain only.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// openAuthority reads the authority that lies in a folder, or makes it. One for another domain, or one that ends within a leaf's
// life, is replaced.
func openAuthority(dir, domain string, now time.Time) (*authority, error) {
	found, err := readAuthority(dir)
	switch {
	case err == nil && found.isFor(domain) && found.cert.NotAfter.Sub(now) > leafLife:
	case err == nil || errors.Is(err, fs.ErrNotExist):
		if found, err = makeAuthority(dir, domain, now); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("the local certificate authority cannot be read (remove the file for a new one): %w", err)
	}
	return found, found.publish(dir)
}

// publish puts the certificate where clients find it.
func (a *authority) publish(dir string) error {
	path := filepath.Join(dir, certFile)
	text := textOf("CERTIFICATE", a.cert.Raw)
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, text) {
		return nil
	}
	return durable.WriteFile(path, text, 0o644)
}

func (a *authority) isFor(domain string) bool {
	return len(a.cert.PermittedDNSDomains) == 1 && a.cert.PermittedDNSDomains[0] == domain
}

func readAuthority(dir string) (*authority, error) {
	path := filepath.Join(dir, authorityFile)
	pair, err := tls.LoadX509KeyPair(path, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: the key cannot sign", path)
	}
	return &authority{cert: pair.Leaf, key: key}, nil
}

func makeAuthority(dir, domain string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "aenv local authority for " + domain},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		// These hold for all that is signed with it.
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         []string{domain},
		ExcludedIPRanges:            allAddresses,
	}, nil, key, key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	both := append(textOf("PRIVATE KEY", secret), textOf("CERTIFICATE", cert.Raw)...)
	if err := durable.WriteFile(filepath.Join(dir, authorityFile), both, 0o600); err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// leaf is a certificate for the domain's names: sandboxes, the API and the domain itself.
func (a *authority) leaf(domain string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: domain},
		DNSNames:    []string{"*." + domain, "api." + domain, "sandbox." + domain, domain},
		NotBefore:   now.Add(-skew),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw, a.cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// sign makes a certificate of a template; without a parent it signs itself.
func sign(template, parent *x509.Certificate, key, signer crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	if parent == nil {
		parent = template
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(raw)
}

// tidy removes from the authority's folder what a broken start left, and a key that nothing is signed with any more.
func tidy(dir string) error {
	err := os.Remove(filepath.Join(dir, formerKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, durable.RemoveTemps(dir))
}

func textOf(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}
