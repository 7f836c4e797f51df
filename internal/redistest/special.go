package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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
func StartTLS(t testing.TB) *TLSServer {
	t.Helper()
	if settings := must[[]any](t, Start(t), "CONFIG", "GET", "tls-port"); len(settings) == 0 {
		t.Skipf("redistest: %s is built without TLS", find(t))
	}
	claim, port, err := freeport.Claim()
	check(t, err)
	t.Cleanup(func() { claim.Close() })
	s := &TLSServer{TLSAddr: freeport.Addr(port), PEM: filepath.Join(t.TempDir(), "pem")}
	s.TLS = writeCertificate(t, s.PEM)
	s.Server = Start(t, "--requirepass", "of the default user", "--tls-port", strconv.Itoa(port),
		"--tls-cert-file", s.PEM, "--tls-key-file", s.PEM, "--tls-ca-cert-file", s.PEM)
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

//go:embed testdata/ahead.c
var aheadC string

// StartAhead is Start, but the server's clock is d ahead of this machine's, or behind if d is
// negative. This needs Linux and a C compiler, cc: t is skipped where there is none.
func StartAhead(t testing.TB, d time.Duration, args ...string) *Server {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		t.Skipf("redistest: setting the clock of a server needs Linux and cc (this is %s, %v)", runtime.GOOS, err)
	}
	find(t)
	library := filepath.Join(t.TempDir(), "ahead.so")
	compile := exec.Command(cc, "-shared", "-fPIC", fmt.Sprintf("-DAHEAD=(%dLL)", d), "-o", library, "-x", "c", "-")
	compile.Stdin = strings.NewReader(aheadC)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("redistest: %v: %v\n%s", compile, err, out)
	}
	return start(t, "", args, "LD_PRELOAD="+library)
}
