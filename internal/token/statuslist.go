package token

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"time"

	strict "github.com/go-json-experiment/json"
)

// StatusListType is the typ header of a status list (draft-ietf-oauth-status-list-20, section 5.1).
const StatusListType = "statuslist+jwt"

// maxListBytes bounds an unpacked list: one bit for each of 2^20 tokens. maxListTTL bounds its ttl, in seconds.
const maxListBytes, maxListTTL = 1 << 17, 1 << 31

// Status says where the issuer publishes whether a token was revoked (draft-ietf-oauth-status-list-20, section 6.2).
type Status struct {
	List *Listed `json:"status_list,omitempty"`
}

// Listed is a token's place in a status list.
type Listed struct {
	Index int64  `json:"idx"`
	URI   string `json:"uri"` // of the list
}

// StatusList says for each place whether the token at that place was revoked. Its holder should fetch a newer list after
// TTL and must stop using this one when it Expires.
type StatusList struct {
	Expires time.Time
	TTL     time.Duration
	bits    []byte
}

// NewStatusList returns a list with the given number of places, a multiple of eight. The tokens at the places in ended
// were revoked.
func NewStatusList(places int, ended []int) StatusList {
	l := StatusList{bits: make([]byte, places/8)}
	for _, place := range ended {
		l.bits[place/8] |= 1 << (place % 8)
	}
	return l
}

// Ended reports whether the token at a place was revoked. It returns ErrStatusList if the list does not contain the
// place.
func (l StatusList) Ended(place int64) (bool, error) {
	if place < 0 || place/8 >= int64(len(l.bits)) {
		return false, ErrStatusList
	}
	return l.bits[place/8]&(1<<(place%8)) != 0, nil
}

// listClaims is the payload of a status list.
type listClaims struct {
	URI      string   `json:"sub"`
	IssuedAt int64    `json:"iat"`
	Expires  int64    `json:"exp"`
	TTL      int64    `json:"ttl"`
	List     packList `json:"status_list"`
}

type packList struct {
	Bits int    `json:"bits"`
	List string `json:"lst"` // base64url of the compressed bits
}

// Payload returns the payload to sign for a list that is published at uri and was true at that time.
func (l StatusList) Payload(uri string, at time.Time) ([]byte, error) {
	var packed bytes.Buffer
	w, err := zlib.NewWriterLevel(&packed, zlib.BestCompression)
	if err == nil {
		_, err = w.Write(l.bits)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("packing a status list: %w", err)
	}
	return json.Marshal(listClaims{
		URI: uri, IssuedAt: at.Unix(), Expires: l.Expires.Unix(), TTL: int64(l.TTL / time.Second),
		List: packList{Bits: 1, List: base64.RawURLEncoding.EncodeToString(packed.Bytes())},
	})
}

// StatusList reads the list fetched from uri. The error wraps one of the sentinels of this package.
func (v *Verifier) StatusList(raw, uri string) (StatusList, error) {
	payload, err := v.open(raw, StatusListType)
	if err != nil {
		return StatusList{}, err
	}
	var c listClaims
	if strict.Unmarshal(payload, &c) != nil || c.URI != uri || c.List.Bits != 1 || c.IssuedAt <= 0 ||
		c.TTL <= 0 || c.TTL > maxListTTL || c.Expires > maxUnixTime {
		return StatusList{}, ErrStatusList
	}
	l := StatusList{Expires: time.Unix(c.Expires, 0).UTC(), TTL: time.Duration(c.TTL) * time.Second}
	switch now := v.cfg.Now(); {
	case !now.Before(l.Expires):
		return StatusList{}, ErrExpired
	case time.Unix(c.IssuedAt, 0).After(now.Add(leeway)):
		return StatusList{}, ErrNotYetValid
	}
	packed, err := base64.RawURLEncoding.Strict().DecodeString(c.List.List)
	if err != nil {
		return StatusList{}, ErrStatusList
	}
	r, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return StatusList{}, ErrStatusList
	}
	l.bits, err = io.ReadAll(io.LimitReader(r, maxListBytes+1))
	if err != nil || len(l.bits) > maxListBytes {
		return StatusList{}, ErrStatusList
	}
	return l, nil
}
