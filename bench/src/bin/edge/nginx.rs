//! nginx's configuration: one worker, upstream connections kept, the same headers set, access log on.

/// The whole file.
pub fn configuration(dir: &std::path::Path, listen: u16, upstream: u16) -> String {
    let dir = dir.display();
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {dir}/nginx.pid;\nerror_log {dir}/nginx-error.log;\n\
         events {{ worker_connections 16384; }}\n\
         http {{\n\
           access_log {dir}/nginx-access.log;\n\
           client_body_temp_path {dir}/body;\n  proxy_temp_path {dir}/proxy;\n  fastcgi_temp_path {dir}/f;\n\
           uwsgi_temp_path {dir}/u;\n  scgi_temp_path {dir}/s;\n\
           keepalive_requests 100000000;\n\
           upstream guest {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 100000000; }}\n\
           server {{\n\
             listen 127.0.0.1:{listen};\n\
             location / {{\n\
               proxy_pass http://guest;\n    proxy_http_version 1.1;\n    proxy_buffering off;\n\
               proxy_set_header Connection \"\";\n    proxy_set_header Host $host;\n\
               proxy_set_header X-Forwarded-For $remote_addr;\n    proxy_set_header X-Forwarded-Proto $scheme;\n\
               proxy_set_header X-Forwarded-Host $host;\n    proxy_set_header X-Forwarded-Port $server_port;\n\
               proxy_set_header Forwarded \"for=$remote_addr;host=$host;proto=$scheme\";\n\
             }}\n  }}\n}}\n"
    )
}
