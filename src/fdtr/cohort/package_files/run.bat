@echo off
rem This site's part of the study. Fill in config.json first. Nothing is sent.
rem fdtr runs on Linux: on Windows, inside the Windows Subsystem for Linux.
cd /d "%~dp0"
where wsl >nul 2>nul
if errorlevel 1 (
    echo fdtr runs on Linux. Install the Windows Subsystem for Linux: wsl --install
    exit /b 1
)
wsl sh ./run.sh %*
