package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/redis"
)

func TestARedisIsAsTheFlagsSay(t *testing.T) {
	t.Setenv("TRITONCACHE_REDIS_USERNAME", "someone")
	t.Setenv("TRITONCACHE_REDIS_PASSWORD", "of the environment")
	c, err := configured(t, "--cache-config=redis,host=redis.example,port=7000,db=2", "--cache-config=redis,password=p=1,connect_timeout=1",
		"--cache-config=redis,socket_timeout=0,wait_timeout=3,pool_size=4,tls_enabled=true,sni=name")
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := c.Cache.read()
	if err != nil || got.TLS == nil || got.TLS.ServerName != "name" {
		t.Fatalf("%+v, %v", got, err)
	}
	got.TLS = nil
	want := &redis.Options{
		Address: "redis.example:7000", Username: "someone", Password: "p=1", Database: 2, Connections: 4,
		Connect: time.Millisecond, Socket: 100 * time.Millisecond, Wait: 3 * time.Millisecond,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSettingsOfCachesThatAreWrong(t *testing.T) {
	const secret = "a-secret"
	for args, want := range map[string]string{
		"local,size=1 redis,host=h":    "only a single cache is currently supported",
		"local,size=0":                 "want local,size=BYTES",
		"local":                        "want local,size=BYTES",
		"memcached,password=" + secret: "there is no such cache",
		"redis,password=" + secret:     "setting host",
		"redis,host=h,password=" + secret + ",port=70000":   "setting port",
		"redis,host=h,password=" + secret + ",pool_size=0":  "setting pool_size",
		"redis,host=h," + secret:                            "of the form KEY=VALUE",
		"redis,host=h,password=" + secret + ",host=i":       "given twice",
		"redis,host=h,password=" + secret + ",cacert_dir=d": "setting cacert_dir",
		"redis,host=h,tls_enabled=yes":                      "setting tls_enabled",
		"redis,host=h,tls_enabled=true,cert=none,key=none":  "setting cert",
		"redis,host=h,tls_enabled=true,cacert=none":         "setting cacert",
		"redis,host=h,socket_timeout=x":                     "setting socket_timeout",
	} {
		var c Cache
		c.Config = strings.Split(args, " ")
		_, _, err := c.read()
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %q and no secret", args, err, want)
		}
	}
}
