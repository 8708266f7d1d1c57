package federation

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit/clouds"
)

// AWS is the Security Token Service and S3 of one account in one region. It serves both at one address: calls of S3 are signed for
// the service s3.
type AWS struct {
	*double
	account, region string
	roles           map[string]Role // by name

	objects  sync.Mutex
	buckets  map[string]map[string][]byte
	sessions map[string]*session // by access key
}

// Role is a role that a token can be exchanged for.
type Role struct {
	Trust
	// Bucket and Prefix are where sessions of the role may read, write and list.
	Bucket, Prefix string
	// MaxSession is the longest session; 0 is an hour.
	MaxSession time.Duration
}

// session is what the keys of a role are.
type session struct {
	role, name, secret, token string
	expires                   time.Time
}

// The account and the region of the double.
const (
	Account = "123456789012"
	Region  = "eu-central-1"
)

// NewAWS starts a double with roles, by name, and buckets, which hold objects by key.
func NewAWS(t testing.TB, c Config, roles map[string]Role, buckets map[string]map[string][]byte) *AWS {
	t.Helper()
	a := &AWS{double: newDouble(c), account: Account, region: Region, roles: roles, buckets: buckets, sessions: map[string]*session{}}
	a.listening = c.Authority.serve(t, a, "sts."+Region+".amazonaws.com", "sts.amazonaws.com", "s3."+Region+".amazonaws.com", "*.s3."+Region+".amazonaws.com")
	return a
}

// RoleARN returns the ARN of a role.
func RoleARN(name string) string { return "arn:aws:iam::" + Account + ":role/" + name }

// ServeHTTP implements http.Handler.
func (a *AWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(r *http.Request) *answer {
		signed := r.Header.Get("Authorization")
		if strings.Contains(signed, "/s3/aws4_request") || signed == "" && (r.URL.Path != "/" || r.Method != http.MethodPost && r.URL.Query().Get("Action") == "") {
			return a.s3(r)
		}
		return a.sts(r)
	})
}

func stsError(status int, code, message string) *answer {
	return xmlAnswer(status, struct {
		XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
		Type    string   `xml:"Error>Type"`
		Code    string   `xml:"Error>Code"`
		Message string   `xml:"Error>Message"`
		ID      string   `xml:"RequestId"`
	}{Type: "Sender", Code: code, Message: message, ID: random()})
}

func xmlAnswer(status int, body any) *answer {
	text, err := xml.Marshal(body)
	if err != nil {
		panic(err) // only types of this package
	}
	return &answer{status: status, header: http.Header{"Content-Type": {"text/xml"}}, body: text}
}

func (a *AWS) sts(r *http.Request) *answer {
	form := r.URL.Query()
	var payload []byte
	if r.Method == http.MethodPost {
		var ok bool
		if payload, ok = body(r, "application/x-www-form-urlencoded"); !ok {
			return stsError(400, "MalformedInput", "the content type is not that of a form")
		}
		var err error
		if form, err = url.ParseQuery(string(payload)); err != nil {
			return stsError(400, "MalformedQueryString", "the form cannot be read")
		}
	} else if r.Method != http.MethodGet {
		return stsError(400, "InvalidAction", "the method is not supported")
	}
	if form.Get("Version") != "2011-06-15" || r.URL.Path != "/" {
		return stsError(400, "InvalidAction", "Could not find operation "+form.Get("Action")+" for version "+form.Get("Version"))
	}
	switch form.Get("Action") {
	case "AssumeRoleWithWebIdentity":
		return a.assume(r.Context(), form)
	case "GetCallerIdentity":
		s, refused := a.signedBy(r, "sts", payload)
		if refused != nil {
			return stsError(http.StatusForbidden, refused.Code, refused.Message)
		}
		return xmlAnswer(200, struct {
			XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ GetCallerIdentityResponse"`
			ARN     string   `xml:"GetCallerIdentityResult>Arn"`
			User    string   `xml:"GetCallerIdentityResult>UserId"`
			Account string   `xml:"GetCallerIdentityResult>Account"`
			ID      string   `xml:"ResponseMetadata>RequestId"`
		}{ARN: a.assumed(s), User: "AROA" + strings.ToUpper(s.role) + ":" + s.name, Account: a.account, ID: random()})
	}
	return stsError(400, "InvalidAction", "Could not find operation "+form.Get("Action")+" for version 2011-06-15")
}

func (a *AWS) assumed(s *session) string {
	// The path of a role is not in the ARN of its sessions.
	return "arn:aws:sts::" + a.account + ":assumed-role/" + s.role[strings.LastIndexByte(s.role, '/')+1:] + "/" + s.name
}

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

// assume is AssumeRoleWithWebIdentity.
func (a *AWS) assume(ctx context.Context, form url.Values) *answer {
	for name, values := range form {
		switch name {
		case "Action", "Version", "RoleArn", "RoleSessionName", "WebIdentityToken", "DurationSeconds":
		default:
			return stsError(400, "ValidationError", name+" is not supported")
		}
		if len(values) != 1 {
			return stsError(400, "ValidationError", name+" is given twice")
		}
	}
	seconds := 3600
	if text := form.Get("DurationSeconds"); text != "" {
		var err error
		if seconds, err = strconv.Atoi(text); err != nil || seconds < 900 || seconds > 43200 {
			return stsError(400, "ValidationError", "1 validation error detected: Value '"+text+"' at 'durationSeconds' failed to satisfy constraint")
		}
	}
	s := &session{name: form.Get("RoleSessionName"), secret: random(), token: "IQoJb3JpZ2luX2Vj" + random() + random()}
	raw := form.Get("WebIdentityToken")
	if !sessionName.MatchString(s.name) || len(raw) < 4 || len(raw) > 20000 {
		return stsError(400, "ValidationError", "1 validation error detected: roleSessionName or webIdentityToken failed to satisfy constraint")
	}
	denied := stsError(403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
	name, ok := strings.CutPrefix(form.Get("RoleArn"), RoleARN(""))
	role, known := a.roles[name]
	if !ok {
		return stsError(400, "ValidationError", "Request ARN is invalid")
	}
	if !known {
		// AWS reads the token first, and does not say whether a role exists.
		return denied
	}
	c, err := a.verify(ctx, raw, role.Trust, "RS256", "ES256")
	switch {
	case err == nil:
	case errors.Is(err, errExpired):
		return stsError(400, "ExpiredTokenException", "Token expired: current date/time must be before the expiration date/time")
	case errors.Is(err, errSubject):
		return denied
	case errors.Is(err, errAudience):
		return stsError(400, "InvalidIdentityToken", "Incorrect token audience")
	case errors.Is(err, errIssuer):
		return stsError(400, "InvalidIdentityToken", "No OpenIDConnect provider found in your account for "+c.Issuer)
	case errors.Is(err, errKeys):
		return stsError(400, "IDPCommunicationError", "Couldn't retrieve verification key from your identity provider")
	default:
		return stsError(400, "InvalidIdentityToken", "The web identity token is invalid: "+err.Error())
	}
	limit := role.MaxSession
	if limit == 0 {
		limit = time.Hour
	}
	if time.Duration(seconds)*time.Second > limit {
		return stsError(400, "ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	}
	s.role = name
	if a.wider() {
		s.role = "admin"
	}
	id := "ASIA" + random()[:16]
	expires := a.now().Add(time.Duration(seconds) * time.Second).Truncate(time.Second)
	s.expires = expires
	a.objects.Lock()
	a.sessions[id] = s
	a.objects.Unlock()
	return a.give(ctx, id, Credential{Of: RoleARN(s.role), Subject: c.Subject, ID: c.ID, Secrets: []string{s.secret, s.token}, Expires: expires}, xmlAnswer(200, struct {
		XMLName    xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
		Subject    string   `xml:"AssumeRoleWithWebIdentityResult>SubjectFromWebIdentityToken"`
		Audience   string   `xml:"AssumeRoleWithWebIdentityResult>Audience"`
		ARN        string   `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>Arn"`
		RoleID     string   `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>AssumedRoleId"`
		Token      string   `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`
		Secret     string   `xml:"AssumeRoleWithWebIdentityResult>Credentials>SecretAccessKey"`
		Expiration string   `xml:"AssumeRoleWithWebIdentityResult>Credentials>Expiration"`
		Key        string   `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Provider   string   `xml:"AssumeRoleWithWebIdentityResult>Provider"`
		ID         string   `xml:"ResponseMetadata>RequestId"`
	}{
		Subject: c.Subject, Audience: c.Audience, ARN: a.assumed(s), RoleID: "AROA" + strings.ToUpper(s.role) + ":" + s.name,
		Token: s.token, Secret: s.secret, Expiration: expires.UTC().Format(time.RFC3339), Key: id,
		Provider: fmt.Sprintf("arn:aws:iam::%s:oidc-provider/%s", a.account, strings.TrimPrefix(a.issuer.URL, "https://")), ID: random(),
	}))
}

// signedBy checks the signature of a call, and returns the session that signed it.
func (a *AWS) signedBy(r *http.Request, service string, payload []byte) (*session, *clouds.SigV4Error) {
	verifier := clouds.SigV4{Region: a.region, Service: service, Now: a.now, Keys: func(id string) (clouds.SigV4Key, bool) {
		a.objects.Lock()
		s := a.sessions[id]
		a.objects.Unlock()
		if s == nil {
			return clouds.SigV4Key{}, false
		}
		return clouds.SigV4Key{Secret: s.secret, Token: s.token, Expires: s.expires}, true
	}}
	id, err := verifier.Verify(r, payload)
	if refused := (*clouds.SigV4Error)(nil); errors.As(err, &refused) {
		return nil, refused
	} else if err != nil {
		return nil, &clouds.SigV4Error{Code: "InternalError", Message: err.Error()}
	}
	a.objects.Lock()
	defer a.objects.Unlock()
	return a.sessions[id], nil
}
