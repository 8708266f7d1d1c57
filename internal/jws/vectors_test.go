package jws_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/jws"
)

func decode(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func onP256(t *testing.T, x, y string) crypto.PublicKey {
	t.Helper()
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, decode(t, x), decode(t, y)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestThumbprintAgreesWithTheStandards(t *testing.T) {
	modulus := "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiF" +
		"V4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdA" +
		"ZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU" +
		"8awapJzKnqDKgw"
	for _, tc := range []struct {
		name   string
		public crypto.PublicKey
		want   string
	}{
		{
			"RFC 7638 section 3.1", &rsa.PublicKey{N: new(big.Int).SetBytes(decode(t, modulus)), E: 65537},
			"NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs",
		},
		{
			"RFC 8037 appendix A.3", ed25519.PublicKey(decode(t, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
			"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := jws.Thumbprint(tc.public)
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestCertificateThumbprintAgreesWithTheStandard(t *testing.T) {
	certificate, _ := pem.Decode([]byte(`-----BEGIN CERTIFICATE-----
MIIBBjCBrAIBAjAKBggqhkjOPQQDAjAPMQ0wCwYDVQQDDARtdGxzMB4XDTE4MTAx
ODEyMzcwOVoXDTIyMDUwMjEyMzcwOVowDzENMAsGA1UEAwwEbXRsczBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABNcnyxwqV6hY8QnhxxzFQ03C7HKW9OylMbnQZjjJ
/Au08/coZwxS7LfA4vOLS9WuneIXhbGGWvsDSb0tH6IxLm8wCgYIKoZIzj0EAwID
SQAwRgIhAP0RC1E+vwJD/D1AGHGzuri+hlV/PpQEKTWUVeORWz83AiEA5x2eXZOV
bUlJSGQgjwD5vaUaKlLR50Q2DmFfQj1L+SY=
-----END CERTIFICATE-----`))
	const want = "A4DtL2JmUMhAsvJj5tKyn64SqzmuXbMrJa0n761y5v0"
	if got := jws.CertificateThumbprint(certificate.Bytes); got != want {
		t.Errorf("RFC 8705 appendix A: got %q, want %q", got, want)
	}
}

func TestSignaturesAgreeWithTheStandards(t *testing.T) {
	for _, tc := range []struct {
		name, algorithm, token string
		public                 crypto.PublicKey
	}{
		{
			"RFC 7515 appendix A.3", "ES256",
			"eyJhbGciOiJFUzI1NiJ9" +
				".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ" +
				".DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
			onP256(t, "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
		},
		{
			"RFC 8037 appendix A.4", "EdDSA",
			"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc" +
				".hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
			ed25519.PublicKey(decode(t, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parts, err := jws.Split(tc.token, 1<<10)
			if err != nil {
				t.Fatal(err)
			}
			if err := jws.Verify(tc.token, parts, tc.algorithm, tc.public); err != nil {
				t.Errorf("got %v, want it verified", err)
			}
			other := strings.Replace(tc.token, ".", "A.", 1)
			if err := jws.Verify(other, parts, tc.algorithm, tc.public); !errors.Is(err, jws.ErrSignature) {
				t.Errorf("another header: got %v, want %v", err, jws.ErrSignature)
			}
			if err := jws.Verify(tc.token, parts, "none", tc.public); !errors.Is(err, jws.ErrSignature) {
				t.Errorf("none: got %v, want %v", err, jws.ErrSignature)
			}
		})
	}
}
