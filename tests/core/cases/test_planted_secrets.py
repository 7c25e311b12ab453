"""What leaves the machine: 150 planted secrets in the forms in which they come, and texts of cases that are none.

Secrets are made here, at random from a fixed seed, so that none is real and none stands in this file in full.
"""

from __future__ import annotations

import json
import random
import string
import time

import pytest

from torchsleuth.core.cases.scrub import hidden, scrubbed, without_secrets_in
from torchsleuth.script_runtime.hiding import hide_in_words, hide_secrets, secret_values

LETTERS, DIGITS, HEX = string.ascii_letters, string.digits, "0123456789abcdef"
CHOICE = random.Random(31)


def some(count: int, of: str = LETTERS + DIGITS) -> str:
    return "".join(CHOICE.choice(of) for _ in range(count))


def word() -> str:
    """A password as people choose them: letters, then a digit or two, a sign."""
    return f"{some(7, string.ascii_lowercase)}{some(2, DIGITS)}"


# Forms, with `$` where the secret stands.
ASSIGNED = [
    "DB_PASS=$", "SMTP_PASS=$", "MYSQL_PWD=$", "export REDIS_PASS=$", "Server=h;Uid=sa;Pwd=$;", "password=$",
    "passwd: $", "passphrase = '$'", 'secret="$ and more"', "client_secret='$'", "api_key=$", "api-key: $",
    "apikey=$", "ACCESS_KEY=$", "AccountKey=$", "private_key='$'", "auth_key=$", "signing_key=$",
    "encryption_key=$", "credentials = '$'", "the user's password is '$'", "wandb_api_key: $",
    '{"password": "$"}', '{\\"password\\": \\"$\\"}', '{\\\\\\"api_key\\\\\\": \\\\\\"$\\\\\\"}',
    "{'secret': '$'}", "Config(password='$', lr=0.1)", "n.api_key is '$'", "n.api_key == '$'",
    "___check_obj_id(L['n'].secret, 7), L['n'].secret == '$'", "G['CFG']['password'] == '$'", "L['cfg'].password != '$'",
    "<password>$</password>", '{"name": "DB_PASSWORD", "value": "$"}', "- name: DB_PASSWORD\n  value: $", "('password', '$')",
    "[('api_key', '$'), ('lr', 0.1)]", 'os.environ.setdefault("HF_TOKEN", "$")', "os.environ['WANDB_API_KEY'] = '$'",
    "SecretStr('$')", "auth=('ada', '$')", "HTTPBasicAuth('ada', '$')", "set_password('$')", "huggingface_hub.login('$')",
    "client.login('ada', password='$')", "db.password=$", "+auth.token=$", "masterKey: $", "keystorePassword=$", "user_pass=$",
    "ansible_become_pass=$", "passwort: $", "kennwort=$", "contraseña: $", "mot_de_passe=$", "密码: $", "b'password=$'",
    "password%3D$%26x", "&quot;password&quot;: &quot;$&quot;", "the secret is $", "Invalid API key provided: $", "ENV API_TOKEN=$",
    "login failed for ada with password $", "ValueError: wrong password: $", "cannot log in with ada:$", "cfg.hub.token is '$'",
    "  (api_key): '$'", "password (str): $", "password -> $", "password => '$'", "password := $", "| password | $ |", "password\t$",
    "password = f'$'", "password = ['$']", "passwords = ['$', 'x']", "api_keys = {'openai': '$'}", "password = str('$')",
    "password: |\n  $", "['--password', '$']", "('--token', '$')", "Enter passphrase: $", "openai.api_key = \"$\"",
    "kubectl create secret generic x --from-literal=pw=$", "{'user': 'ada', 'pw': '$'}", "token '$$$' is not valid",
]  # fmt: skip
SAID = [
    "Authorization: Bearer $", "Authorization: Token $", "authorization: Basic $", "'Authorization': 'Bearer $'",
    "Cookie: a=1; session=$", "Set-Cookie: id=$; Path=/", "machine h.example.com login ada password $",
    "curl -u ada:$ https://h/x", "curl --user ada:$ -X POST https://h", "sshpass -p $ ssh h", "mysql -u root -p$ db",
    "postgres://ada:$@db.example.com/x", "redis://:$@h:6379/0", "https://$@example.com/simple",
    "https://h.blob.core.windows.net/c?sv=2022&sig=$&se=2027", "GET /x?access_key=$&page=2",
    "redis-cli -a $ ping", "openssl rsa -passin pass:$ -in k", "gpg --batch --passphrase $ -d x", "smbclient //h/s -U ada%$",
    "http -a ada:$ https://h", "unzip -P $ x.zip", "7z x -p$ x.7z", "docker login -u ada -p $ h", "echo $ | sudo -S ls",
    "curl -H 'X-Api-Key: $' https://h", "curl -b 'session=$' https://h", "X-Auth-Token: $", "https://h/x?token=$", "?apikey=$",
    "jdbc:oracle:thin:ada/$@h:1521/x", "Authorization: ApiKey $", 'Authorization: Digest username="ada", response="$"',
]  # fmt: skip
OPTIONS = [
    "--api-key $", "--api-key=$", "--wandb-key $", "--wandb-key=$", "--pass $", "--db-pass=$", "--hub-token $",
    "--secret $", "--password=$", "--auth $", "--smtp-pwd $", "-p $", "--client-secret=$",
]  # fmt: skip
SHAPES = [
    lambda: "hf_" + some(34, LETTERS),
    lambda: "ghp_" + some(36),
    lambda: "gho_" + some(36),
    lambda: "github_pat_" + some(82),
    lambda: "glpat-" + some(20),
    lambda: "sk-proj-" + some(40) + "1",
    lambda: "sk-ant-api03-" + some(93) + "AA",
    lambda: "sk_live_" + some(24),
    lambda: "rk_live_" + some(24),
    lambda: "npm_" + some(36),
    lambda: "pypi-AgEIcHlwaS5vcmc" + some(60),
    lambda: "nvapi-" + some(64),
    lambda: "gsk_" + some(52),
    lambda: "r8_" + some(37),
    lambda: "AKIA" + some(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    lambda: "AIza" + some(35),
    lambda: "xoxb-" + some(12, DIGITS) + "-" + some(12, DIGITS) + "-" + some(24),
    lambda: "dop_v1_" + some(64, HEX),
    lambda: "SG." + some(22) + "." + some(43),
    lambda: "dapi" + some(32, HEX),
    lambda: "shpat_" + some(32, HEX),
    lambda: "lin_api_" + some(40),
    lambda: "pul-" + some(40, HEX),
    lambda: "hvs." + some(95),
    lambda: "glsa_" + some(32) + "_" + some(8, HEX),
    lambda: "ATATT3" + some(186),
    lambda: "PMAK-" + some(24, HEX) + "-" + some(34, HEX),
    lambda: "eyJ" + some(20) + ".eyJ" + some(30) + "." + some(40),
    lambda: "-----BEGIN RSA PRIVATE KEY-----\n" + some(64) + "\n-----END RSA PRIVATE KEY-----",
    lambda: (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: x 2.0\n\n"
        + some(64)
        + "\n-----END PGP PRIVATE KEY BLOCK-----"
    ),
    lambda: (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
        + some(64)
        + "\n-----END RSA PRIVATE KEY-----"
    ),
    lambda: "wandb_v1_" + some(60) + "1",
    lambda: "tgp_v1_" + some(40) + "1",
    lambda: "xai-" + some(79) + "1",
    lambda: "lsv2_pt_" + some(32, HEX) + "_" + some(10, HEX),
    lambda: "pcsk_" + some(6) + "_" + some(60),
    lambda: "dckr_pat_" + some(26) + "1",
    lambda: "tskey-auth-" + some(12) + "1-" + some(32),
    lambda: "figd_" + some(40) + "1",
    lambda: "KGAT_" + some(32, HEX),
    lambda: "sbp_" + some(40, HEX),
    lambda: "ya29." + some(60),
    lambda: "wandb: " + some(40, HEX),
    lambda: "api key " + some(32, HEX),
    lambda: "Zq3" + some(37) + "7vB",  # of nobody that we know
]
PLANTED = (
    [(form, word()) for form in ASSIGNED + SAID for _ in range(2)]
    + [(f"python train.py --epochs 3 {form} --lr 0.1", word()) for form in OPTIONS]
    + [("it was $, no more", make()) for make in SHAPES]
    + [("Authorization: Bearer $", some(24, LETTERS)), ("header 'Bearer $'", some(24, LETTERS))]
    + [("https://hooks.slack.com/services/$", f"T{some(8)}/B{some(8)}/{some(24)}")]
)


# As people keep and pass them, each with the secret it was planted with: configurations, shells, guards, sentences.
KEPT = [
    ('violet-Otter-77', 'export LDAP_BIND_PW=$'),
    ('mangoLassi!9', 'PGPASSFILE_CONTENT=db:5432:*:app:$'),
    ('Zr8hLq2vXk', 'setenv VAULT_UNSEAL_KEY $'),
    ('hunter2hunter3', 'set -x FTP_PASSWORD $'),
    ('kiwi.kiwi.kiwi', 'env ADMIN_PASSPHRASE=$ python train.py'),
    ('Tq9#mm2!pX', 'RABBITMQ_DEFAULT_PASS=$'),
    ('d41d8cd98f00b204e9800998ecf8427f', 'WANDB_API_KEY=$'),
    ('s3cr3tsauce', 'docker run -e MYSQL_ROOT_PASSWORD=$ mysql'),
    ('purple_monkey', 'kubectl create secret generic db --from-literal=password=$'),
    ('AAbb1122ccDD', 'helm install x --set auth.rootPassword=$'),
    ('Summer2024', 'net use Z: \\\\srv\\share /user:corp\\joe /password:$'),
    ('gopher-42-gopher', 'mongosh --username root --password $'),
    ('9482-1177-0034', "psql 'host=db user=u password=$ dbname=x'"),
    ('wintermute', 'rsync --password-file=x a b RSYNC_PASSWORD=$'),
    ('lemonTree88', 'snowsql -a acct -u me --private-key-passphrase $'),
    ('p4ssw0rd.local', 'ldapsearch -x -D cn=admin -w $ -b dc=x'),
    ('Qwerty!2345', 'mysql -uroot -p$ db'),
    ('ab12cd34ef', 'sqlcmd -S srv -U sa -P $'),
    ('tiger_scott', 'sqlplus scott/$@orcl'),
    ('cumulonimbus', 'smbclient //srv/x -U user%$'),
    ('zX81spectrum', 'wget --user=me --password=$ https://h/x'),
    ('redherring77', 'wget --http-password $ https://h/x'),
    ('moonbeam-11', 'aria2c --http-passwd=$ url'),
    ('correcthorse', '7z x -p$ a.7z'),
    ('batterystaple', 'unzip -P $ a.zip'),
    ('gnuprivacy1', 'gpg --batch --passphrase $ -d f.gpg'),
    ('toiletbrush', 'ansible-playbook -e ansible_become_pass=$ p.yml'),
    ('Xyzzy.1234', 'az login --service-principal -u app -p $ --tenant t'),
    ('ocelot.ocelot', 'twine upload -u me -p $ dist/*'),
    ('whiskeyTango', 'svn checkout --username bob --password $ url'),
    ('ssh-pass-value', 'SSHPASS=$ sshpass -e ssh h'),
    ('marzipan99', 'htpasswd -b /etc/pw joe $'),
    ('keepassXC1', 'keytool -storepass $ -keypass changeit2'),
    ('Antananarivo', 'openssl enc -aes-256-cbc -pass pass:$ -in f'),
    ('papaya+plum', "echo '$' | sudo -S ls"),
    ('abc123def456', 'git clone https://oauth2:$@git.example.com/x/y.git'),
    ('chucknorris7', 'pip install --index-url https://bot:$@pypi.corp/simple x'),
    ('k9mutt', 'ftp://joe:$@ftp.example.org/pub'),
    ('sup3rs3cr3t', 'postgresql+asyncpg://app:$@10.0.0.4:5432/prod?ssl=1'),
    ('yamlsecret1', 'database:\n  user: app\n  password: $\n  host: db'),
    ('yaml secret two words', 'smtp:\n  passwd: "$"'),
    ('foldedvalue99', 'api_key: >-\n  $\nother: 1'),
    ('literalblock1', 'client_secret: |\n  $\n'),
    ('tomlSecret', '[auth]\ntoken = "$"'),
    ('tomlTriple', "secret_key = '''$'''"),
    ('iniSecret5', '[mail]\nlogin=joe\npwd=$\n'),
    ('dotenv#x', "STRIPE_SECRET='$'"),
    ('xmlSecret8', '<password>$</password>'),
    ('xmlAttr8', '<add key="ApiKey" value="$" />'),
    ('mavenpw1', '<server><id>r</id><username>u</username><password>$</password></server>'),
    ('connstr9', 'Server=db;Database=x;User Id=sa;Password=$;Encrypt=yes'),
    ('jaasSecret', 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="$";'),
    ('wifiSecret0', 'network={ ssid="home" psk="$" }'),
    ('nginxbasic1', 'proxy_set_header Authorization "Basic $";'),
    ('pgpassline', 'db.example.com:5432:prod:app:$'),
    ('netrcone', 'machine api.example.com login joe password $'),
    ('netrctwo', 'machine h\n  login joe\n  password $\n'),
    ('npmrcsecretvalue', '//registry.npmjs.org/:_authToken=$'),
    ('npmrcb64==', '//reg/:_password=$'),
    ('dockercfg0123456789abcdef', '{"auths": {"https://index.docker.io/v1/": {"auth": "$"}}}'),
    ('kubeconfigtok', 'users:\n- name: u\n  user:\n    token: $'),
    ('tfvarssecret', 'db_password = "$"'),
    ('gradlesecret', 'signing.keyPassword=$'),
    ('propsecret', 'spring.datasource.password=$'),
    ('hoconsecret', 'akka.remote.ssl { key-store-password = "$" }'),
    ('rcloneobscured', '[remote]\ntype = sftp\npass = $'),
    ('jsonsecret1', '{"user": "u", "access_token": "$"}'),
    ('jsonsecret2', '{"cfg": "{\\"apiKey\\": \\"$\\"}"}'),
    ('jsonsecret3', '{"a": "{\\"b\\": \\"{\\\\\\"refresh_token\\\\\\": \\\\\\"$\\\\\\"}\\"}"}'),
    ('jsonsecret4', '\'{"clientSecret": "$", "x": 1}\''),
    ('jsonsecret5', '[{"name": "password", "value": "$"}]'),
    ('jsonsecret6', '{"key": "DB_PASSWORD", "value": "$"}'),
    ('jsonsecret7', '{"env": [{"name": "HF_TOKEN", "value": "$"}]}'),
    ('jsonsecret8', '{\n  "passwords": [\n    "$",\n    "other"\n  ]\n}'),
    ('jsonsecret9', '{"credentials": {"user": "joe", "pass": "$"}}'),
    ('json\\u0073ecret', '{"password": "$"}'),
    ('jsonlsecret', '{"level":"info","msg":"login","fields":{"otp":"493021","session_token":"$"}}'),
    ('reprsecret1', "Config(host='h', password='$', port=1)"),
    ('reprsecret2', "{'Authorization': 'Bearer $'}"),
    ('reprsecret3', "namespace(api_key='$', n=3)"),
    ('reprsecret4', "db_password = ('$',)  # password"),
    ('reprsecret5', "[('user', 'joe'), ('passwd', '$')]"),
    ('reprsecret6', "dict(secret=b'$')"),
    ('reprsecret7', '    self.auth_token = "$"'),
    ('reprsecret8', 'KeyError: "no user for token \'$\'"'),
    ('reprsecret9', 'ValueError: invalid api key: $'),
    ('guardsecret1', "L['self'].cfg['db_password'] == '$'"),
    ('guardsecret2', "G['SETTINGS'].secret_key == '$'"),
    ('guardsecret3', '___check_obj_id(L[\'x\'], 1)  # if self.token == "$":'),
    ('guardsecret4', "EQUALS_MATCH: L['creds'][1] == '$'"),
    ('localsecret1', "connect(user='joe', pw='$')"),
    ('localsecret2', "login('joe', password='$')"),
    ('localsecret3', 'client = OpenAI(api_key="$")'),
    ('localsecret4', "boto3.client('s3', aws_secret_access_key='$')"),
    ('localsecret5', "os.environ['HF_TOKEN'] = '$'"),
    ('localsecret6', 'os.environ.setdefault("DB_PW", "$")'),
    ('localsecret7', "os.putenv('MY_SECRET', '$')"),
    ('localsecret8', "parser.add_argument('--password', default='$')"),
    ('localsecret9', 'def connect(host, token: str = "$"):'),
    ('localsecret10', "keyring.set_password('svc', 'joe', '$')"),
    ('localsecret11', "assert token == '$', 'bad'"),
    ('localsecret12', "requests.get(u, auth=('joe', '$'))"),
    ('localsecret13', "HTTPBasicAuth('joe', '$')"),
    ('localsecret14', 'password := "$"'),
    ('localsecret15', "sign(d, secret='$', algorithm='HS256')"),
    ('localsecret16', "Fernet(encryption_key=b'$')"),
    ('localsecret17', "hmac_key = bytes('$', 'ascii')"),
    ('hdr1value', 'Authorization: Bearer $'),
    ('hdr2value', 'authorization: token $'),
    ('hdr3value', 'X-Api-Key: $'),
    ('hdr4value', 'X-Auth-Token: $'),
    ('hdr5value', 'Cookie: theme=dark; sid=$; lang=en'),
    ('hdr6value', 'Set-Cookie: session=$; HttpOnly; Path=/'),
    ('hdr7value', 'Proxy-Authorization: Basic $'),
    ('hdr8value', "curl -H 'PRIVATE-TOKEN: $' https://gitlab/x"),
    ('hdr9value', 'curl --oauth2-bearer $ https://x'),
    ('hdr10value', 'http --auth joe:$ GET x.org'),
    ('hdr11value', "curl -b 'SESSION=$' https://x"),
    ('hdr12value', 'x-amz-security-token: $'),
    ('hdr13value', 'Ocp-Apim-Subscription-Key: $'),
    ('hdr14value', 'api-key: $'),
    ('hdr15value', 'curl --user joe:$ x.org'),
    ('hdr16value', 'Authorization: Digest username="joe", realm="r", response="$"'),
    ('urlq1', 'https://api.x.com/v1?access_token=$&n=1'),
    ('urlq2', 'https://x.com/cb#id_token=$'),
    ('urlq3', 'https://hooks.zapier.com/x?apikey=$'),
    ('urlq4percent', 'https://h/login?redirect=%2Fa%3Fpassword%3D$%26x'),
    ('urlq8', 'redis://:$@cache:6379/0'),
    ('urlq9', 'amqp://guest:$@mq//'),
    ('urlq10!', 'mongodb+srv://u:$@c0.mongodb.net/db'),
    ('Sommerregen5', 'Das Passwort lautet $ und gilt bis Freitag'),
    ('motdepasse7', 'mot de passe : $'),
    ('contrasena77', 'contraseña=$'),
    ('himitsu.desu', 'パスワード: $'),
    ('sentence1x', 'the API key for prod is $'),
    ('sentence2x', 'using token $ for upload'),
    ('sentence3x', 'login with user joe and password $ failed'),
    ('sentence4x', 'DB_PASSWORD not set, falling back to $'),
    ('sentence5x', 'Enter passphrase: $'),
    ('839201', 'Your verification code OTP: $'),
    ('sentence7x', 'secret -> $'),
    ('sentence8x', "password => '$'"),
    ('sentence9x', '| password | $ |'),
    ('sentence10x', 'token\t$\t2024-01-01'),
    ('sentence11x', "--hf-token '$'"),
    ('sentence12x', '-Dhttp.proxyPassword=$ -jar x.jar'),
    ('sentence13x', '/p:Password=$'),
    ('sentence14x', '++trainer.logger.api_key=$'),
    ('sentence15x', 'logger.wandb.key=$'),
    ('sentence16x', 'python t.py --set secrets.db $'),
]  # fmt: skip


@pytest.mark.parametrize(("secret", "form"), KEPT, ids=range(len(KEPT)))
def test_what_a_name_is_given_goes_wherever_it_stands(secret: str, form: str) -> None:
    text = form.replace("$", secret)
    document = {"said": text}
    ways = [
        hidden(text, ()),
        hidden(json.dumps({"log": json.dumps(document)}), ()),
        scrubbed("log.txt", text),
        scrubbed("case.json", json.dumps(document)),
        scrubbed("repro.py", f"x = {text!r}\n# {text!r}\n"),
    ]
    assert [way for way in ways if secret in way] == []


def test_there_are_as_many_as_it_says() -> None:
    assert len(PLANTED) >= 140


def telling(secret: str) -> list[str]:
    """The parts of a secret that would give it away."""
    parts = [
        part
        for part in secret.replace("/", "\n").splitlines()
        if not part.startswith(("-----", "https", "Proc", "Version"))
    ]
    return [part[6:] for part in parts if len(part) > 8]


@pytest.mark.parametrize(("form", "secret"), PLANTED, ids=range(len(PLANTED)))
def test_a_planted_secret_leaves_by_no_way(form: str, secret: str) -> None:
    text = form.replace("$$$", secret * 3).replace("$", secret)
    assert secret in text
    document = {"said": [text], "how": {"deep": text}}
    ways = [
        hidden(text, ()),
        scrubbed("log.txt", f"a line\n{text}\nanother"),
        scrubbed("case.json", json.dumps(document)),
        scrubbed("repro.py", f"x = {text!r}\n# {' '.join(text.splitlines())}\n"),
        json.dumps(without_secrets_in(document)),
    ]
    for clean in ways:
        assert not any(part in clean for part in telling(secret)), clean
        assert "<hidden>" in clean
    assert hidden(ways[0], ()) == ways[0]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_taken_out_of_a_command_line_and_wherever_its_value_occurs(option: str) -> None:
    secret = word()
    words = ["python", "train.py", *option.replace("$", secret).split(), "--lr", "0.1"]
    clean = hide_in_words(words)
    assert not any(secret in each for each in clean) and clean[-2:] == ["--lr", "0.1"]
    assert secret in secret_values({}, words)
    assert secret not in hide_secrets(f"it said {secret}", secret_values({}, words))


@pytest.mark.parametrize(
    "name", ["DB_PASS", "SMTP_PASS", "MYSQL_PWD", "WANDB_API_KEY", "MY_SECRET", "HF_TOKEN"]
)
def test_the_value_of_a_variable_is_taken_out_as_it_is_shown_in_errors(name: str) -> None:
    secret = f"{word()}\n{word()}'\"{word()}"
    values = secret_values({name: secret}, [])
    for shown in (repr(secret), json.dumps(secret), secret, f"KeyError: {secret!r}"):
        clean = hidden(shown, values)
        assert not any(line.strip("'\"")[:9] in clean for line in secret.splitlines()), clean


HARMLESS = [
    "KeyError: 'key'", "unexpected token: ')'", "--tokenizer gpt2 --max-tokens 512", "--sort-key loss",
    "--pass fuse_attention", "the pass=decompose_mm_2 changed 3 nodes", "post_grad_pass: remove_noop_ops_1",
    "current_pass = joint_graph_passes_1", "mkdir -p build/x86_64", "g++ -O3 -p cvar.cpp", "pytest -p no:cacheprovider",
    "python -m pytest -p xdist", "PWD=/home/user", "OLDPWD=/data/x", "secret: str", "password: str = None",
    "def password(token, secret=None):", "primary_key = id", "cache_key: fxgraph", "key: fabc123def456abc123def456abc12345",
    "fx graph cache key fxq4w3tb6hzs5kdl2nvm7yxe3o2j4tq6uyd3kd5sx2v7ykkh4v3q", "triton_poi_fused_add_mul_sigmoid_0",
    "case 1a2b3c4d of run 20261119-173500-ab12", "cr6nsno5lfnyqjgjscfwtcu74eq3u44lp4nhf3vblq3wv75laj4y.py",
    "/tmp/torchinductor_user/r6/cr6nsno5lfnyqjgjscfwtcu74eq3u44lp4nhf3vblq3wv75laj4y.py", "nvapi", "sk-learn",
    "L['self'].author == 'ada'", "G['torch'].nn.functional.relu is 139872398472", "tokens.shape[0] == 512",
    "___check_type_id(L['self'].tokenizer, 94512)", "L['token_type_ids'].size()[1] == 128",
    "Basic optimisation of the graph", "Bearer of bad news", "user@example.com wrote https://example.com/a@b",
    "curl -O https://example.com/x.tar.gz", "https://github.com/pytorch/pytorch/issues/188048",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "cookie cutter", "signature: wrong result",
    '"signature": {"summary": "LoweringException: AssertionError", "kind": "compile_error"}',
    "torch.ops.aten._scaled_dot_product_flash_attention.default", "auth = build_auth()", "token_embedding.weight",
    "self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))", "next_token = next_token.unsqueeze(-1)",
    "hidden_state, cls_token = hidden_state[0], hidden_state[1]", "one_token = key.size(1) == 1", "self.mask_token = nn.Embedding(2, 8)",
    "position_ids[:, batch_idx, valid_token_mask] = current_position_ids", "inference_session: Sam2VideoInferenceSession,",
    "authorization = authorization.split(':')", "forward_hf_token: bool = False,", "if no secret is provided, it stops", "def login(self, user='', passwd='', acct='')",
    "hf://<repo-id>[@<revision>]/<path/in/repo>", "storage_key.device.type != 'cpu'", "self.storage_to_allocator[storage_key] = node",
    "from .cpp_micro_gemm import CppMicroGemmWoQInt4Amx", "packed = QConvPointWiseBinaryPT2E(", "perChMaxRingLL128Bws", "WeightInt4PackMatmul",
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferE", "password: str",
    "__compiled_fn_1_7f9f3f23_8a4b_4df1_bc11_b9d4f7ab2b3f", "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped",
    "aten.native_layer_norm_backward.default", "cpp_fused__softmax__to_copy_add_masked_fill_mul_0", "Mixtral8x7BInstructV01ForCausalLM",
    "torch.frombuffer(bytearray(base64.b64decode('AbC1dEf2GhI3jKl4MnO5pQr6StU7vWx8')), dtype=torch.int64)", "pass 1 of 3: fuse",
    "script-src 'sha256-9bQ3xV7kLm2TzR8wYc4NfH6dJp1Gs5Ae0UoKiWqMvXt='", "`tests/front/cli/test_front_without_torch.py` hold it",
    "docker run -u 1000 -p 8080:80 img", "token: Tokenizer", "pass: remove_noop_ops", "model.py:1234: in forward", "secret | mask", "api_key = os.environ['API_KEY']", "password = getpass.getpass()", "get_token(key)", "self.api_key = api_key", "key=lambda x: x[1]",
    "model.layers.0.self_attn.q_proj.weight: f32[4096, 4096]", "is_causal=True, enable_gqa=False", "x.is_cuda is True",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hidden(text, ()) == text
    assert without_secrets_in({"said": text}) == {"said": text}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "-" * 5000,
            "a-" * 2500 + "password",
            "\n" * 5000 + "password",
            " " * 5000 + "token",
            "\\" * 5000 + "password",
        ),
        *(
            "x" * 5000 + "key",
            "--password" * 500,
            "password " * 600,
            "password='" * 500,
            " -u a" * 1000,
            "://" * 1500,
        ),
    ],
    ids=range(11),
)
def test_no_text_of_a_strangers_takes_long_to_look_at(text: str) -> None:
    """Some took 17 s: seconds of the processor, as other programs may run beside this one."""
    began = time.process_time()
    hidden(text, ())
    assert time.process_time() - began < 3
