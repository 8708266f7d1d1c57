package token_test

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
)

const listURI = "https://example.com/statuslists/1"

const listHeader = `{"alg":"ES256","kid":"ec","typ":"statuslist+jwt"}`

// packed is the payload of a status list as an issuer writes it.
func packed(lst string) map[string]any {
	return map[string]any{
		"sub": listURI, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "ttl": 20,
		"status_list": map[string]any{"bits": 1, "lst": lst},
	}
}

func endedIn(t *testing.T, list token.StatusList, places int) []int {
	t.Helper()
	var all []int
	for place := range places {
		ended, err := list.Ended(int64(place))
		if err != nil {
			t.Fatalf("place %d: %v", place, err)
		}
		if ended {
			all = append(all, place)
		}
	}
	for _, beyond := range []int64{-1, int64(places), 1 << 40} {
		if _, err := list.Ended(beyond); !errors.Is(err, token.ErrStatusList) {
			t.Errorf("place %d of %d: got %v, want %v", beyond, places, err, token.ErrStatusList)
		}
	}
	return all
}

func TestStatusListsAgreeWithTheDraft(t *testing.T) {
	a := newAuthority(t)
	v := a.verifier(gateway)
	for _, tc := range []struct {
		name, lst string
		places    int
		want      []int
	}{
		{"section 4.1", "eNrbuRgAAhcBXQ", 16, []int{0, 3, 4, 5, 7, 8, 9, 13, 15}},
		{
			"its vector of one bit", "eNrt3AENwCAMAEGogklACtKQPg9LugC9k_ACvreiogE" +
				"AAKkeCQAAAAAAAAAAAAAAAAAAAIBylgQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" +
				"AAAAAAAAAAAAAAAAAAAXG9IAAAAAAAAAPwsJAAAAAAAAAAAAAAAvhsSAAAAAAAAAAA" +
				"A7KpLAAAAAAAAAAAAAAAAAAAAAJsLCQAAAAAAAAAAADjelAAAAAAAAAAAKjDMAQAAA" +
				"ACAZC8L2AEb", 1 << 20,
			[]int{0, 1993, 25460, 159495, 495669, 554353, 645645, 723232, 854545, 934534, 1000345},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			theirs, err := v.StatusList(a.sign("ES256", listHeader, string(marshal(t, packed(tc.lst)))), listURI)
			if err != nil {
				t.Fatal(err)
			}
			if got := endedIn(t, theirs, tc.places); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			own := token.NewStatusList(tc.places, tc.want)
			own.TTL, own.Expires = 20*time.Second, now.Add(time.Minute)
			payload, err := own.Payload(listURI, now)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := v.StatusList(a.sign("ES256", listHeader, string(payload)), listURI)
			if err != nil || ours.TTL != own.TTL || !ours.Expires.Equal(own.Expires) {
				t.Fatalf("got %v for %v, %v", ours.Expires, ours.TTL, err)
			}
			if got := endedIn(t, ours, tc.places); !slices.Equal(got, tc.want) {
				t.Errorf("our own: got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestInvalidStatusListsAreRefused(t *testing.T) {
	a := newAuthority(t)
	v := a.verifier(gateway)
	pack := func(bits []byte) string {
		var out bytes.Buffer
		w := zlib.NewWriter(&out)
		_, _ = w.Write(bits)
		_ = w.Close()
		return base64.RawURLEncoding.EncodeToString(out.Bytes())
	}
	const lst = "eNrbuRgAAhcBXQ"
	with := func(name string, value any) string {
		c := packed(lst)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return a.sign("ES256", listHeader, string(marshal(t, c)))
	}
	good := with("ttl", 20)
	list := func(bits int, lst string) string {
		return with("status_list", map[string]any{"bits": bits, "lst": lst})
	}
	for name, tc := range map[string]struct {
		raw  string
		want error
	}{
		"nothing":             {"", token.ErrMalformed},
		"an access token":     {a.sign("ES256", goodHeader, string(marshal(t, packed(lst)))), token.ErrMalformed},
		"of another URI":      {with("sub", listURI+"0"), token.ErrStatusList},
		"of no URI":           {with("sub", nil), token.ErrStatusList},
		"over":                {with("exp", now.Unix()), token.ErrExpired},
		"without an end":      {with("exp", nil), token.ErrExpired},
		"of the year 10000":   {with("exp", 253402300800), token.ErrStatusList},
		"from the future":     {with("iat", now.Unix()+6), token.ErrNotYetValid},
		"of no time":          {with("iat", nil), token.ErrStatusList},
		"without ttl":         {with("ttl", nil), token.ErrStatusList},
		"to be kept for ages": {with("ttl", 1<<40), token.ErrStatusList},
		"without a list":      {with("status_list", nil), token.ErrStatusList},
		"of two bits each":    {list(2, lst), token.ErrStatusList},
		"not base64url":       {list(1, "eNrbuRgAAhcBXQ=="), token.ErrStatusList},
		"not packed":          {list(1, "uaM"), token.ErrStatusList},
		"cut off":             {list(1, lst[:10]), token.ErrStatusList},
		"with another sum":    {list(1, "eNrbuRgAAhcBXA"), token.ErrStatusList},
		"huge, unpacked":      {list(1, pack(make([]byte, 1<<17+1))), token.ErrStatusList},
		"changed":             {good[:len(good)-4] + "AAAA", token.ErrSignature},
	} {
		if got, err := v.StatusList(tc.raw, listURI); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tc.want)
		}
	}
	if _, err := v.Verify(with("iss", issuer)); !errors.Is(err, token.ErrMalformed) {
		t.Errorf("a list as an access token: got %v, want %v", err, token.ErrMalformed)
	}
}

// An accepted status list is bounded, in force and from its URI, and says nothing about places beyond its end.
func FuzzStatusList(f *testing.F) {
	a := newAuthority(f)
	v := a.verifier(gateway)
	good, err := token.NewStatusList(64, []int{3, 17}).Payload(listURI, now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(string(marshal(f, packed("eNrbuRgAAhcBXQ"))))
	f.Add(string(marshal(f, packed("eNr\n"))))
	f.Add(`{"sub":"` + listURI + `","iat":1,"exp":99999999999,"ttl":20,"status_list":{"bits":2,"lst":""}}`)
	f.Fuzz(func(t *testing.T, payload string) {
		signer := *a
		signer.t = t
		list, err := v.StatusList(signer.sign("ES256", listHeader, payload), listURI)
		if err != nil {
			if refusal.Reason(err) == "internal" {
				t.Errorf("got %v, want a refusal", err)
			}
			return
		}
		if !list.Expires.After(now) || list.TTL <= 0 {
			t.Errorf("accepted %+v", list)
		}
		for _, beyond := range []int64{-1, 8 << 17, 1 << 62} {
			if _, err := list.Ended(beyond); !errors.Is(err, token.ErrStatusList) {
				t.Errorf("place %d: got %v", beyond, err)
			}
		}
	})
}
