package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/freeport"
)

// A TLSServer is a Server that clients reach over TLS at TLSAddr, with a certificate. It asks
// everybody for a password. Addr remains for Do, which has the password of the default user.
type TLSServer struct {
	*Server
	TLSAddr string
	TLS     *tls.Config // of a client
	PEM     string      // path of the certificate of clients, server and authority, with its key
}

// StartTLS starts a TLSServer. If the server is built without TLS, the test is skipped.
func StartTLS(t testing.TB, args ...string) *TLSServer {
	t.Helper()
	if settings := must[[]any](t, Start(t), "CONFIG", "GET", "tls-port"); len(settings) == 0 {
		t.Skipf("redistest: %s is built without TLS", find(t))
	}
	claim, port, err := freeport.Claim()
	check(t, err)
	t.Cleanup(func() { claim.Close() })
	s := &TLSServer{TLSAddr: freeport.Addr(port), PEM: filepath.Join(t.TempDir(), "pem")}
	s.TLS = writeCertificate(t, s.PEM)
	s.Server = Start(t, append([]string{
		"--requirepass", "of the default user", "--tls-port", strconv.Itoa(port),
		"--tls-cert-file", s.PEM, "--tls-key-file", s.PEM, "--tls-ca-cert-file", s.PEM,
	}, args...)...)
	return s
}

// writeCertificate writes a certificate that has signed itself, and its key. It returns the
// settings of a client that trusts the certificate and shows it.
func writeCertificate(t testing.TB, path string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.ParseIP(host)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	check(t, os.WriteFile(path, append(certificate, private...), 0o600))
	pair, err := tls.X509KeyPair(certificate, private)
	check(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}
