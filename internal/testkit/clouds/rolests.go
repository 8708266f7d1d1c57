package clouds

import (
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// STSVersion is the only version of the API.
const STSVersion = "2011-06-15"

const (
	account      = "123456789012"
	shortestSTS  = 15 * time.Minute // of DurationSeconds, for every role
	chainedLimit = time.Hour        // for a role that a temporary key assumes
)

var (
	roleARN     = regexp.MustCompile(`^arn:aws:iam::\d{12}:role/[\w+=,.@/-]{1,64}$`)
	sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
)

// RoleSTS is the AssumeRole and GetCallerIdentity of AWS STS, for one account with one user. It follows the API reference of AWS STS,
// and verifies signatures. It refuses every parameter and action that it does not implement.
type RoleSTS struct {
	// URL is where it listens. Region is the region of its signatures.
	URL, Region string
	// KeyID and Secret are the access key of the user who may assume the roles.
	KeyID, Secret string

	mu       sync.Mutex
	roles    map[string]time.Duration // by ARN, the longest session
	sessions map[string]STSSession    // by access key id
	stretch  time.Duration
	losing   bool
}

// STSSession is what AssumeRole has given.
type STSSession struct {
	KeyID, Secret, Token, Role, Name string
	Began, Expires                   time.Time
}

// NewRoleSTS starts an STS that knows the role arn:aws:iam::123456789012:role/NAME for each name, with sessions of an hour at most.
func NewRoleSTS(t testing.TB, roles ...string) *RoleSTS {
	t.Helper()
	s := &RoleSTS{
		Region: "eu-central-1", KeyID: "AKIA" + rand.Text()[:16], Secret: rand.Text() + "/+" + rand.Text()[:12],
		roles: map[string]time.Duration{}, sessions: map[string]STSSession{},
	}
	for _, name := range roles {
		s.roles[RoleARN(name)] = time.Hour
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// RoleARN returns the ARN of a role of the account.
func RoleARN(name string) string { return "arn:aws:iam::" + account + ":role/" + name }

// Stretch makes sessions live longer than the caller asked for, which AWS never does.
func (s *RoleSTS) Stretch(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stretch = by
}

// LoseAnswers makes the server hang up after each AssumeRole, when the session exists already.
func (s *RoleSTS) LoseAnswers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losing = true
}

// Sessions returns the sessions that have not expired.
func (s *RoleSTS) Sessions() []STSSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	var live []STSSession
	for _, session := range s.sessions {
		if time.Now().Before(session.Expires) {
			live = append(live, session)
		}
	}
	return live
}

func (s *RoleSTS) key(id string) (SigV4Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == s.KeyID {
		return SigV4Key{Secret: s.Secret}, true
	}
	session, known := s.sessions[id]
	return SigV4Key{Secret: session.Secret, Token: session.Token, Expires: session.Expires}, known
}

// ServeHTTP implements the query protocol of AWS.
func (s *RoleSTS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := s.answer(r)
	w.Header().Set("Content-Type", "text/xml")
	if refusal, ok := errors.AsType[*SigV4Error](err); ok {
		w.WriteHeader(statusOf(refusal.Code))
		answer = &stsError{Type: "Sender", Code: refusal.Code, Message: refusal.Message}
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func statusOf(code string) int {
	if slices.Contains([]string{"ValidationError", "InvalidParameterValue", "InvalidAction", "MissingParameter"}, code) {
		return http.StatusBadRequest
	}
	return http.StatusForbidden
}

func (s *RoleSTS) answer(r *http.Request) (any, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, &SigV4Error{"ValidationError", "the body broke off"}
	}
	caller, err := SigV4{Region: s.Region, Service: "sts", Keys: s.key, Now: time.Now}.Verify(r, body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/" || r.URL.RawQuery != "" || form.Get("Version") != STSVersion {
		return nil, &SigV4Error{"InvalidAction", "want a form of version " + STSVersion}
	}
	switch form.Get("Action") {
	case "GetCallerIdentity":
		return s.identity(caller, form)
	case "AssumeRole":
		return s.assumeRole(caller, form)
	default:
		return nil, &SigV4Error{"InvalidAction", "Could not find operation " + form.Get("Action")}
	}
}

func only(form url.Values, names ...string) error {
	for name := range form {
		if !slices.Contains(append(names, "Action", "Version"), name) {
			return &SigV4Error{"ValidationError", "unknown parameter " + name}
		}
	}
	return nil
}

func (s *RoleSTS) identity(caller string, form url.Values) (any, error) {
	if err := only(form); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &callerIdentity{ARN: "arn:aws:iam::" + account + ":user/vault", User: "AIDAVAULT", Account: account}
	if session, temporary := s.sessions[caller]; temporary {
		out.ARN, out.User = session.arn(), "AROA:"+session.Name
	}
	return out, nil
}

func (s STSSession) arn() string {
	return "arn:aws:sts::" + account + ":assumed-role/" + s.Role[strings.LastIndexByte(s.Role, '/')+1:] + "/" + s.Name
}

func (s *RoleSTS) assumeRole(caller string, form url.Values) (any, error) {
	if err := only(form, "RoleArn", "RoleSessionName", "DurationSeconds"); err != nil {
		return nil, err
	}
	role, name, duration := form.Get("RoleArn"), form.Get("RoleSessionName"), time.Hour
	if text := form.Get("DurationSeconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		if duration = time.Duration(seconds) * time.Second; err != nil || duration < shortestSTS || duration > 12*time.Hour {
			return nil, &SigV4Error{"ValidationError", fmt.Sprintf("1 validation error detected: Value '%s' at 'durationSeconds' failed to "+
				"satisfy constraint: Member must have value between 900 and 43200", text)}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	longest, known := s.roles[role]
	_, chained := s.sessions[caller]
	switch {
	case !roleARN.MatchString(role):
		return nil, &SigV4Error{"ValidationError", role + " is invalid"}
	case !sessionName.MatchString(name):
		return nil, &SigV4Error{"ValidationError", "Value at 'roleSessionName' failed to satisfy constraint"}
	case !known || chained: // only the user is in the roles' trust policies
		return nil, &SigV4Error{"AccessDenied", "User is not authorized to perform: sts:AssumeRole on resource: " + role}
	case duration > longest:
		return nil, &SigV4Error{"ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."}
	}
	now := time.Now().UTC().Truncate(time.Second)
	session := STSSession{
		KeyID: "ASIA" + rand.Text()[:16], Secret: rand.Text() + "/+" + rand.Text()[:12], Token: rand.Text() + rand.Text() + "==",
		Role: role, Name: name, Began: now, Expires: now.Add(duration + s.stretch),
	}
	s.sessions[session.KeyID] = session
	if s.losing {
		panic(http.ErrAbortHandler)
	}
	out := &assumedRole{}
	out.Result.User.ARN, out.Result.User.ID = session.arn(), "AROA:"+name
	out.Result.Credentials = stsCredentials{session.KeyID, session.Secret, session.Token, session.Expires.Format(time.RFC3339)}
	return out, nil
}

type stsCredentials struct {
	KeyID   string `xml:"AccessKeyId"`
	Secret  string `xml:"SecretAccessKey"`
	Token   string `xml:"SessionToken"`
	Expires string `xml:"Expiration"`
}

type assumedRole struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleResponse"`
	Result  struct {
		Credentials stsCredentials
		User        struct {
			ARN string `xml:"Arn"`
			ID  string `xml:"AssumedRoleId"`
		} `xml:"AssumedRoleUser"`
	} `xml:"AssumeRoleResult"`
}

type callerIdentity struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ GetCallerIdentityResponse"`
	ARN     string   `xml:"GetCallerIdentityResult>Arn"`
	User    string   `xml:"GetCallerIdentityResult>UserId"`
	Account string   `xml:"GetCallerIdentityResult>Account"`
}

type stsError struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
	Type    string   `xml:"Error>Type"`
	Code    string   `xml:"Error>Code"`
	Message string   `xml:"Error>Message"`
}
