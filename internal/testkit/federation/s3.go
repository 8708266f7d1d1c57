package federation

import (
	"bufio"
	"bytes"
	"crypto/md5" // of an ETag
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"hash/crc32"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func s3Error(status int, code, message string) *answer {
	return xmlAnswer(status, struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
		ID      string `xml:"RequestId"`
	}{Code: code, Message: message, ID: random()})
}

// s3 serves GetObject, PutObject and ListObjectsV2, for buckets in the path or in the host name.
func (a *AWS) s3(r *http.Request) *answer {
	payload, err := io.ReadAll(io.LimitReader(r.Body, 10<<20))
	if err != nil {
		return s3Error(400, "IncompleteBody", "the body cannot be read")
	}
	s, refused := a.signedBy(r, "s3", payload)
	if refused != nil {
		switch refused.Code {
		case "MissingAuthenticationToken":
			return s3Error(403, "AccessDenied", "Access Denied")
		case "InvalidClientTokenId":
			return s3Error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
		case "ExpiredToken":
			return s3Error(400, refused.Code, "The provided token has expired.")
		}
		return s3Error(403, refused.Code, refused.Message)
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	bucket, inHost := strings.CutSuffix(r.Host, ".s3."+a.region+".amazonaws.com")
	key := path
	if !inHost {
		bucket, key, _ = strings.Cut(path, "/")
	}
	query := r.URL.Query()
	role := a.roles[s.role]
	wanted := key
	if key == "" {
		wanted = query.Get("prefix")
	}
	if s.role != "admin" && (bucket != role.Bucket || !strings.HasPrefix(wanted, role.Prefix)) {
		return s3Error(403, "AccessDenied", "User: "+a.assumed(s)+" is not authorized to perform this action on resource: \"arn:aws:s3:::"+bucket+"/"+key+"\"")
	}
	a.objects.Lock()
	defer a.objects.Unlock()
	objects, ok := a.buckets[bucket]
	if !ok {
		return s3Error(404, "NoSuchBucket", "The specified bucket does not exist")
	}
	switch {
	case r.Method == http.MethodGet && key == "" && query.Get("list-type") == "2":
		return list(bucket, query.Get("prefix"), objects)
	case r.Method == http.MethodGet && key != "":
		text, ok := objects[key]
		if !ok {
			return s3Error(404, "NoSuchKey", "The specified key does not exist.")
		}
		return &answer{status: 200, body: text, header: http.Header{
			"Content-Type": {"application/octet-stream"}, "Etag": {etag(text)}, "Last-Modified": {time.Now().UTC().Format(http.TimeFormat)},
		}}
	case r.Method == http.MethodPut && key != "" && r.Header.Get("X-Amz-Copy-Source") == "":
		text, why := received(r, payload)
		if why != "" {
			return s3Error(400, why, "the body is not what the headers say")
		}
		objects[key] = text
		return &answer{status: 200, header: http.Header{"Etag": {etag(text)}}}
	}
	return s3Error(501, "NotImplemented", "A header or query you provided implies functionality that is not implemented")
}

func etag(text []byte) string {
	sum := md5.Sum(text)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func list(bucket, prefix string, objects map[string][]byte) *answer {
	type content struct {
		Key, LastModified, ETag, StorageClass string
		Size                                  int
	}
	var found []content
	for key, text := range objects {
		if strings.HasPrefix(key, prefix) {
			found = append(found, content{key, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), etag(text), "STANDARD", len(text)})
		}
	}
	slices.SortFunc(found, func(a, b content) int { return strings.Compare(a.Key, b.Key) })
	return xmlAnswer(200, struct {
		XMLName           xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
		Name, Prefix      string
		KeyCount, MaxKeys int
		IsTruncated       bool
		Contents          []content
	}{Name: bucket, Prefix: prefix, KeyCount: len(found), MaxKeys: 1000, Contents: found})
}

// received returns the object that a PutObject carries, or the code of an error. The SDKs send a CRC-32 in a header or in the
// trailer of a body in chunks.
func received(r *http.Request, payload []byte) (text []byte, why string) {
	sum := r.Header.Get("X-Amz-Checksum-Crc32")
	if r.Header.Get("X-Amz-Content-Sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
		lines := bufio.NewReader(bytes.NewReader(payload))
		for {
			line, err := lines.ReadString('\n')
			size, bad := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
			if err != nil || bad != nil {
				return nil, "IncompleteBody"
			}
			if size == 0 {
				break
			}
			part := make([]byte, size+2)
			if _, err := io.ReadFull(lines, part); err != nil {
				return nil, "IncompleteBody"
			}
			text = append(text, part[:size]...)
		}
		trailer, err := textproto.NewReader(lines).ReadMIMEHeader()
		if err != nil || itoa(int64(len(text))) != r.Header.Get("X-Amz-Decoded-Content-Length") {
			return nil, "IncompleteBody"
		}
		sum = trailer.Get("X-Amz-Checksum-Crc32")
	} else {
		text = payload
	}
	if sum != "" {
		n := crc32.ChecksumIEEE(text)
		if sum != base64.StdEncoding.EncodeToString([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) {
			return nil, "BadDigest"
		}
	}
	if digest := r.Header.Get("Content-Md5"); digest != "" {
		own := md5.Sum(text)
		if digest != base64.StdEncoding.EncodeToString(own[:]) {
			return nil, "BadDigest"
		}
	}
	return text, ""
}
